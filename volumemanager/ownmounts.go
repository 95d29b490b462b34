package volumemanager

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// ownMount is a mount that an operation of this manager has made, or that was there when it was set up again. It does not
// change; a new one takes its place.
type ownMount struct {
	podvolume.Key

	path string
	// uniqueID is the mount's, and zero where the kernel has none: then identity says what is known of it.
	uniqueID uint64
	identity *mount.Identity
	// flags are the options of the mount, joined, as they were. Most mounts have the same.
	flags unique.Handle[string]
	// filesystem is that on a block device which it shows; zero for every other.
	filesystem filesystem
	// reported says that the call which made the mount has told of it.
	reported bool
	// underway says that this call may not have returned yet: it may still change the flags.
	underway bool
	// readOnly says that the filesystem was read-only.
	readOnly bool
	// lost is when the mount in whose place this one was made was found gone; zero when none was.
	lost time.Time
}

func newOwnMount(h podvolume.Key, path string, found mount.MountPoint) *ownMount {
	own := &ownMount{
		Key: h, path: path, uniqueID: found.UniqueID,
		flags: unique.Make(strings.Join(found.Options, ",")), readOnly: isReadOnly(found), filesystem: filesystemOf(found),
	}
	if found.UniqueID == 0 {
		identity := found.Identity()
		own.identity = &identity
	}
	return own
}

// expect is what tells the mount from others.
func (o *ownMount) expect() mount.Identity {
	if o.identity != nil {
		return *o.identity
	}
	return mount.Identity{UniqueID: o.uniqueID}
}

// ownMounts are the mounts of this manager that it knows for certain, so that the news of a mount can be told to be about
// one of them in the time of a look into a map. The zero value has none.
type ownMounts struct {
	mu     sync.Mutex
	byPath map[string]*ownMount
	byID   map[uint64]*ownMount
	// byFilesystem are those of each filesystem on a block device.
	byFilesystem map[filesystem]map[*ownMount]struct{}
	// directories are the directories of volumes that are no mounts, by path.
	directories map[string]*ownDirectory
	// hidden are the paths of ours at which somebody has mounted on top, or above.
	hidden map[string]struct{}
	// leaving are those that are being taken away, as they were when that began.
	leaving map[podvolume.Key]*ownMount
	// gone are those that are mounted no more while their teardown hangs.
	gone map[podvolume.Key]struct{}
	// busy are the paths of which an operation is about to change something.
	busy map[string]*busyPath
}

// busyPath is what is known of a path while an operation is about to change what is there.
type busyPath struct {
	// news says that there was news of it meanwhile.
	news bool
	// seen is what was mounted there when the set-up had returned; nil before, and once that was learned.
	seen *mount.MountPoint
	// removed says that the call has removed the directory, so that nothing was mounted there any more.
	removed bool
}

func (t *ownMounts) get(path string) *ownMount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byPath[path]
}

// byUniqueID returns the mount of ours with the unique id.
func (t *ownMounts) byUniqueID(id uint64) *ownMount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// all returns the mounts that no operation is about to change. Of the others end will tell that there was news.
func (t *ownMounts) all() []*ownMount {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*ownMount, 0, len(t.byPath))
	for path, own := range t.byPath {
		if busy := t.busy[path]; busy != nil {
			busy.news = true
			continue
		}
		all = append(all, own)
	}
	return all
}

// enter takes a mount as ours in place of what was known at its path.
func (t *ownMounts) enter(own *ownMount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byPath == nil {
		t.byPath, t.byID = make(map[string]*ownMount), make(map[uint64]*ownMount)
	}
	t.dropLocked(own.path)
	t.byPath[own.path] = own
	if own.uniqueID != 0 {
		t.byID[own.uniqueID] = own
	}
	if own.filesystem == (filesystem{}) {
		return
	}
	if t.byFilesystem == nil {
		t.byFilesystem = make(map[filesystem]map[*ownMount]struct{})
	}
	if t.byFilesystem[own.filesystem] == nil {
		t.byFilesystem[own.filesystem] = make(map[*ownMount]struct{}, 1)
	}
	t.byFilesystem[own.filesystem][own] = struct{}{}
}

// ofFilesystem returns the mounts of a filesystem that no operation is about to change, and whether there are others.
func (t *ownMounts) ofFilesystem(fs filesystem) (mounts []*ownMount, others bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for own := range t.byFilesystem[fs] {
		if _, busy := t.busy[own.path]; busy {
			others = true
			continue
		}
		mounts = append(mounts, own)
	}
	return mounts, others
}

// enterReported takes a mount as ours that the call which made it has told of. It is not known again by a look at what is
// uppermost.
func (t *ownMounts) enterReported(own *ownMount) {
	own.reported, own.underway = true, true
	if old := t.get(own.path); old != nil {
		own.lost = old.lost
		if old.uniqueID == own.uniqueID && own.uniqueID != 0 { // only refreshed: its flags should still be those that it had
			own.flags, own.readOnly, own.underway = old.flags, old.readOnly, old.underway
		}
	}
	t.enter(own)
}

// drop forgets what is known at a path.
func (t *ownMounts) drop(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(path)
}

func (t *ownMounts) dropLocked(path string) {
	delete(t.directories, path)
	old := t.byPath[path]
	if old == nil {
		return
	}
	delete(t.byPath, path)
	delete(t.byID, old.uniqueID)
	if same := t.byFilesystem[old.filesystem]; same != nil {
		delete(same, old)
		if len(same) == 0 {
			delete(t.byFilesystem, old.filesystem)
		}
	}
}

// hide remembers a path at which ours cannot be seen, until unhide: it is looked at again whenever any mount goes.
func (t *ownMounts) hide(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hidden == nil {
		t.hidden = make(map[string]struct{})
	}
	t.hidden[path] = struct{}{}
}

func (t *ownMounts) unhide(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.hidden, path)
}

func (t *ownMounts) allHidden() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.hidden))
}

// leave says that a mount is about to be taken away.
func (t *ownMounts) leave(own *ownMount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving == nil {
		t.leaving = make(map[podvolume.Key]*ownMount)
	}
	t.leaving[own.Key] = own
}

// leavingOf returns the mount that is being taken away, or was when that ended uncertainly; nil when there is none.
func (t *ownMounts) leavingOf(h podvolume.Key) *ownMount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving[h]
}

// letGo says that a mount is there no more while its teardown hangs.
func (t *ownMounts) letGo(own *ownMount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leaving, own.Key)
	if t.byPath[own.path] == own {
		t.dropLocked(own.path)
	}
	if t.gone == nil {
		t.gone = make(map[podvolume.Key]struct{})
	}
	t.gone[own.Key] = struct{}{}
}

func (t *ownMounts) isLetGo(h podvolume.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.gone[h]
	return is
}

// takeBack ends leave and letGo: there is an operation on it again, or nothing is left of it.
func (t *ownMounts) takeBack(h podvolume.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.gone, h)
	delete(t.leaving, h)
}

// begin says that an operation is about to change what is at a path, so that news of it says nothing until end.
func (t *ownMounts) begin(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy == nil {
		t.busy = make(map[string]*busyPath)
	}
	t.busy[path] = &busyPath{}
}

// saw keeps what was seen at a path for who learns it in the same operation.
func (t *ownMounts) saw(path string, found mount.MountPoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if busy := t.busy[path]; busy != nil {
		busy.seen = &found
	}
}

// seenOr returns what saw has kept, once, or else what look finds.
func (t *ownMounts) seenOr(path string, look func() (mount.MountPoint, error)) (mount.MountPoint, error) {
	t.mu.Lock()
	var seen *mount.MountPoint
	if busy := t.busy[path]; busy != nil {
		seen, busy.seen = busy.seen, nil
	}
	t.mu.Unlock()
	if seen != nil {
		return *seen, nil
	}
	return look()
}

// remove says that the operation's call has removed the directory at a path.
func (t *ownMounts) remove(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if busy := t.busy[path]; busy != nil {
		busy.removed = true
	}
}

func (t *ownMounts) isRemoved(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	return busy != nil && busy.removed
}

// end says that the operation has ended, and returns whether there was news of the path meanwhile.
func (t *ownMounts) end(path string) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	delete(t.busy, path)
	return busy != nil && busy.news
}

// isBusy reports whether an operation is about to change what is at a path; then end will tell that there was news.
func (t *ownMounts) isBusy(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	if busy == nil {
		return false
	}
	busy.news = true
	return true
}
