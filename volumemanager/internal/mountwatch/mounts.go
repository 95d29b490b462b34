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

// Mount is a mount that an operation of this manager has made or found. It never changes; a new Mount replaces it.
type Mount struct {
	podvolume.Key

	path string
	// UniqueID is the kernel's unique id of the mount. It is zero if the kernel has none; identity then tells the mount from
	// others.
	UniqueID uint64
	identity *mount.Identity
	// flags are the mount's options, joined, as they were when it was entered. Most mounts share one string.
	flags unique.Handle[string]
	// filesystem is the mounted filesystem if it is on a block device; otherwise zero.
	filesystem filesystem
	// reported says that the call that made the mount has reported it.
	reported bool
	// underway says that this call may still run and may still change the flags.
	underway bool
	// readOnly says that the filesystem was read-only when the mount was entered.
	readOnly bool
	// lost is when this mount, or an earlier one at its path, was last found gone; zero if none was.
	lost time.Time
}

// NewMount returns a mount that was found at a path, as ours.
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

// Expect returns the identity by which the mount is told from others.
func (o *Mount) Expect() mount.Identity {
	if o.identity != nil {
		return *o.identity
	}
	return mount.Identity{UniqueID: o.UniqueID}
}

// Options returns the mount's options, joined, as they were when it was entered.
func (o *Mount) Options() string { return o.flags.Value() }

// IsReadOnly reports whether the filesystem was read-only when the mount was entered.
func (o *Mount) IsReadOnly() bool { return o.readOnly }

// Lost returns a recorded mount whose place another mount has taken. Its identity keeps the other one from being taken for
// ours.
func Lost(h podvolume.Key, path string, id uint64, identity *mount.Identity) *Mount {
	return &Mount{Key: h, path: path, UniqueID: id, identity: identity, flags: unique.Make("")}
}

// mounts holds the mounts of this manager that are certain. A map lookup tells whether an event is about one of them. The
// zero value is empty.
type mounts struct {
	mu     sync.Mutex
	byPath map[string]*Mount
	byID   map[uint64]*Mount
	// byFilesystem holds the mounts of each filesystem on a block device.
	byFilesystem map[filesystem]map[*Mount]struct{}
	// directories holds the directories of volumes that are no mounts, by path.
	directories map[string]*directory
	// hidden holds the paths of our mounts that a foreign mount covers, at the path or above it.
	hidden map[string]struct{}
	// leaving holds the mounts that an operation is taking away, as they were when it began.
	leaving map[podvolume.Key]*Mount
	// gone holds the volumes that are no longer mounted although their teardown still hangs.
	gone map[podvolume.Key]struct{}
	// busy holds the paths that an operation is changing.
	busy map[string]*busyPath
}

// busyPath is the state of a path while an operation changes it.
type busyPath struct {
	// changed says that the path has to be checked when the operation ends.
	changed bool
	// seen is the mount that was found when the set-up returned. It is nil before, and after lookup has returned it.
	seen *mount.MountPoint
	// removed says that the call has removed the directory: nothing is mounted there any more.
	removed bool
}

func (t *mounts) get(path string) *Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byPath[path]
}

// byUniqueID returns our mount with the unique id; nil if there is none.
func (t *mounts) byUniqueID(id uint64) *Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// all returns the mounts that no operation is changing. It marks the other paths to be checked when their operations end.
func (t *mounts) all() []*Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Mount, 0, len(t.byPath))
	for path, own := range t.byPath {
		if busy := t.busy[path]; busy != nil {
			busy.changed = true
			continue
		}
		all = append(all, own)
	}
	return all
}

// enter makes a mount ours, in place of what was known at its path.
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

// ofFilesystem returns the mounts of a filesystem that no operation is changing, and whether operations are changing others.
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

// enterReported enters a mount that was reported by the call that made it. A later look at the uppermost mount does not
// replace it.
func (t *mounts) enterReported(own *Mount) {
	own.reported, own.underway = true, true
	if old := t.get(own.path); old != nil {
		own.lost = old.lost
		if old.UniqueID == own.UniqueID && own.UniqueID != 0 { // only refreshed: its flags should still be the earlier ones
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

// hide remembers a path at which our mount is covered, until unhide. The watch checks the path again whenever any mount
// goes.
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

// leave notes that an operation is about to take a mount away.
func (t *mounts) leave(own *Mount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving == nil {
		t.leaving = make(map[podvolume.Key]*Mount)
	}
	t.leaving[own.Key] = own
}

// leavingOf returns the mount that an operation is taking away, or tried to take away with an uncertain end; nil if there is
// none.
func (t *mounts) leavingOf(h podvolume.Key) *Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving[h]
}

// isGoing reports whether an operation is taking a mount away now.
func (t *mounts) isGoing(own *Mount) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving[own.Key] == own && t.busy[own.path] != nil
}

// release notes that a mount is gone although its teardown still hangs.
func (t *mounts) release(own *Mount) {
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

func (t *mounts) isReleased(h podvolume.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.gone[h]
	return is
}

// resetTeardown undoes leave and release: another operation on the volume begins, or nothing is left of the volume.
func (t *mounts) resetTeardown(h podvolume.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.gone, h)
	delete(t.leaving, h)
}

// begin notes that an operation is about to change a path. Events about the path wait until end.
func (t *mounts) begin(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy == nil {
		t.busy = make(map[string]*busyPath)
	}
	t.busy[path] = &busyPath{}
}

// keep stores the mount that was found at a path, for lookup later in the same operation.
func (t *mounts) keep(path string, found mount.MountPoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if busy := t.busy[path]; busy != nil {
		busy.seen = &found
	}
}

// lookup returns the mount that keep has stored, at most once; otherwise the result of look.
func (t *mounts) lookup(path string, look func() (mount.MountPoint, error)) (mount.MountPoint, error) {
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

// remove notes that the call of the operation has removed the directory at a path.
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

// end notes that the operation has ended, and returns whether the path has to be checked now.
func (t *mounts) end(path string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	delete(t.busy, path)
	return busy != nil && busy.changed
}

// isBusy reports whether an operation is changing a path. If so, it marks the path to be checked when the operation ends.
func (t *mounts) isBusy(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.busy[path]
	if busy == nil {
		return false
	}
	busy.changed = true
	return true
}
