package mountwatch

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

// Mount is a mount that an operation of this manager has made, or that was there when it was set up again. It does not
// change; a new one takes its place.
type Mount struct {
	podvolume.Key

	path string
	// UniqueID is the mount's, and zero where the kernel has none: then identity says what is known of it.
	UniqueID uint64
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

// NewMount returns what was found mounted at a path as ours.
func NewMount(h podvolume.Key, path string, found mount.MountPoint) *Mount {
	own := &Mount{
		Key: h, path: path, UniqueID: found.UniqueID,
		flags: unique.Make(strings.Join(found.Options, ",")), readOnly: IsReadOnly(found), filesystem: filesystemOf(found),
	}
	if found.UniqueID == 0 {
		identity := found.Identity()
		own.identity = &identity
	}
	return own
}

// Expect is what tells the mount from others.
func (o *Mount) Expect() mount.Identity {
	if o.identity != nil {
		return *o.identity
	}
	return mount.Identity{UniqueID: o.UniqueID}
}

// Options returns the options of the mount, joined, as they were.
func (o *Mount) Options() string { return o.flags.Value() }

// IsReadOnly reports whether the filesystem was read-only.
func (o *Mount) IsReadOnly() bool { return o.readOnly }

// Lost returns a mount on record in the place of which another one was found: that is not to be taken for it.
func Lost(h podvolume.Key, path string, id uint64, identity *mount.Identity) *Mount {
	return &Mount{Key: h, path: path, UniqueID: id, identity: identity, flags: unique.Make("")}
}

// mounts are the mounts of this manager that it knows for certain, so that the news of a mount can be told to be about
// one of them in the time of a look into a map. The zero value has none.
type mounts struct {
	mu     sync.Mutex
	byPath map[string]*Mount
	byID   map[uint64]*Mount
	// byFilesystem are those of each filesystem on a block device.
	byFilesystem map[filesystem]map[*Mount]struct{}
	// directories are the directories of volumes that are no mounts, by path.
	directories map[string]*directory
	// hidden are the paths of ours at which somebody has mounted on top, or above.
	hidden map[string]struct{}
	// leaving are those that are being taken away, as they were when that began.
	leaving map[podvolume.Key]*Mount
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

func (t *mounts) get(path string) *Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byPath[path]
}

// byUniqueID returns the mount of ours with the unique id.
func (t *mounts) byUniqueID(id uint64) *Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// all returns the mounts that no operation is about to change. Of the others end will tell that there was news.
func (t *mounts) all() []*Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Mount, 0, len(t.byPath))
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
func (t *mounts) enter(own *Mount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byPath == nil {
		t.byPath, t.byID = make(map[string]*Mount), make(map[uint64]*Mount)
	}
	t.dropLocked(own.path)
	t.byPath[own.path] = own
	if own.UniqueID != 0 {
		t.byID[own.UniqueID] = own
	}
	if own.filesystem == (filesystem{}) {
		return
	}
	if t.byFilesystem == nil {
		t.byFilesystem = make(map[filesystem]map[*Mount]struct{})
	}
	if t.byFilesystem[own.filesystem] == nil {
		t.byFilesystem[own.filesystem] = make(map[*Mount]struct{}, 1)
	}
	t.byFilesystem[own.filesystem][own] = struct{}{}
}

// ofFilesystem returns the mounts of a filesystem that no operation is about to change, and whether there are others.
func (t *mounts) ofFilesystem(fs filesystem) (mounts []*Mount, others bool) {
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
func (t *mounts) enterReported(own *Mount) {
	own.reported, own.underway = true, true
	if old := t.get(own.path); old != nil {
		own.lost = old.lost
		if old.UniqueID == own.UniqueID && own.UniqueID != 0 { // only refreshed: its flags should still be those that it had
			own.flags, own.readOnly, own.underway = old.flags, old.readOnly, old.underway
		}
	}
	t.enter(own)
}

// drop forgets what is known at a path.
func (t *mounts) drop(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(path)
}

func (t *mounts) dropLocked(path string) {
	delete(t.directories, path)
	old := t.byPath[path]
	if old == nil {
		return
	}
	delete(t.byPath, path)
	delete(t.byID, old.UniqueID)
	if same := t.byFilesystem[old.filesystem]; same != nil {
		delete(same, old)
		if len(same) == 0 {
			delete(t.byFilesystem, old.filesystem)
		}
	}
}

// hide remembers a path at which ours cannot be seen, until unhide: it is looked at again whenever any mount goes.
func (t *mounts) hide(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hidden == nil {
		t.hidden = make(map[string]struct{})
	}
	t.hidden[path] = struct{}{}
}

func (t *mounts) unhide(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.hidden, path)
}

func (t *mounts) allHidden() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.hidden))
}

// leave says that a mount is about to be taken away.
func (t *mounts) leave(own *Mount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving == nil {
		t.leaving = make(map[podvolume.Key]*Mount)
	}
	t.leaving[own.Key] = own
}

// leavingOf returns the mount that is being taken away, or was when that ended uncertainly; nil when there is none.
func (t *mounts) leavingOf(h podvolume.Key) *Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving[h]
}

// isGoing reports whether an operation is under way that takes a mount away.
func (t *mounts) isGoing(own *Mount) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving[own.Key] == own && t.busy[own.path] != nil
}

// letGo says that a mount is there no more while its teardown hangs.
func (t *mounts) letGo(own *Mount) {
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

func (t *mounts) isLetGo(h podvolume.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.gone[h]
	return is
}

// takeBack ends leave and letGo: there is an operation on it again, or nothing is left of it.
func (t *mounts) takeBack(h podvolume.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.gone, h)
	delete(t.leaving, h)
}

// begin says that an operation is about to change what is at a path, so that news of it says nothing until end.
func (t *mounts) begin(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy == nil {
		t.busy = make(map[string]*busyPath)
	}
	t.busy[path] = &busyPath{}
}

// saw keeps what was seen at a path for who learns it in the same operation.
func (t *mounts) saw(path string, found mount.MountPoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if busy := t.busy[path]; busy != nil {
		busy.seen = &found
	}
}

// seenOr returns what saw has kept, once, or else what look finds.
func (t *mounts) seenOr(path string, look func() (mount.MountPoint, error)) (mount.MountPoint, error) {
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
func (t *mounts) remove(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if busy := t.busy[path]; busy != nil {
		busy.removed = true
	}
}

func (t *mounts) isRemoved(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	return busy != nil && busy.removed
}

// end says that the operation has ended, and returns whether there was news of the path meanwhile.
func (t *mounts) end(path string) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	delete(t.busy, path)
	return busy != nil && busy.news
}

// isBusy reports whether an operation is about to change what is at a path; then end will tell that there was news.
func (t *mounts) isBusy(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	if busy == nil {
		return false
	}
	busy.news = true
	return true
}
