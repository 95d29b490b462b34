package mount

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxTableAge is how long a table is handed out again without being read. It bounds how late a change is seen that the
// kernel does not tell of.
const maxTableAge = time.Second

// current is what was last read of the mount table. What poll(2) on the open table reports, and what it does not, was
// tried on Linux 6.18:
//
//   - reported: a mount, an unmount, a move, also when they come from a peer in another namespace or from the removal of
//     the directory there; new options of a mount by mount(2) or mount_setattr(2), the latter with its propagation; a
//     remount of a filesystem by mount(2);
//   - not reported: propagation by mount(2); a filesystem that is changed by fsconfig(2), from another namespace or by its
//     own failure (emergency_ro); a rename of a directory above a mount point, or above what a bind shows.
//
// So a table is handed out again when poll reports nothing, no filesystem on a block device has other flags, as those
// are the ones that turn read-only by the kernel's doing, and it is at most maxTableAge old.
//
// What is kept has one descriptor, whether it is the table or references: a table that is good answers for the references,
// and references are only asked for when there is none.
type current struct {
	// reading holds a token while the table is read, or mounts are asked for references, so that it is done once for all who ask.
	reading chan struct{}
	table   atomic.Pointer[snapshot]
	refs    atomic.Pointer[refsSnapshot]
	roots   atomic.Pointer[rootsOfMounts] // nil until a caller asks for references
}

func newCurrent() *current { return &current{reading: make(chan struct{}, 1)} }

// keepTable keeps a table that was just read, in place of everything else.
func (c *current) keepTable(s *snapshot) {
	c.table.Store(s)
	c.dropRefs()
}

// keepRefs keeps references, unless a table was read meanwhile. A caller that keeps something stores it before it looks for the
// other, so that of two at once one at least sees it.
func (c *current) keepRefs(s *refsSnapshot) {
	if old := c.refs.Swap(s); old != nil {
		old.forget()
	}
	switch table := c.table.Load(); {
	case table == nil:
	case table.isFresh():
		c.dropRefs()
	default:
		table.forget() // it is too old
	}
}

// dropRefs forgets the references.
func (c *current) dropRefs() {
	if old := c.refs.Swap(nil); old != nil {
		old.forget()
	}
}

// acquire takes the right to read the table. It asks ctx for its channel only if it has to wait: the caller that asks first makes
// the channel, and in a bubble of testing/synctest that must not be of a context from outside.
func (c *current) acquire(ctx context.Context) error {
	select {
	case c.reading <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.reading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the mount table was not read: %w: %w", ErrTransient, ctx.Err())
	}
}

// snapshot is one reading of the whole table.
type snapshot struct {
	witness

	table  []MountPoint
	blocks []blockFlags

	indexOnce sync.Once
	indexed   *tableIndex
}

// index returns the index of the table, which is made when it is first asked for.
func (s *snapshot) index() *tableIndex {
	s.indexOnce.Do(func() { s.indexed = newTableIndex(s.table) })
	return s.indexed
}

// witness is an open mount table by which the kernel tells whether mounts have changed since it was opened.
type witness struct {
	opened time.Time

	mu   sync.Mutex // held over a poll that does not wait, since one poll takes the news from the others
	file *os.File   // nil when there was a change; its finalizer closes it when the Mounter is forgotten
}

// open begins to watch for changes.
func (w *witness) open() (fd int, err error) {
	if fd, err = openTable(); err != nil {
		return -1, err
	}
	w.opened, w.file = time.Now(), os.NewFile(uintptr(fd), tablePath)
	return fd, nil
}

// isFresh reports whether no change has been told of and the age is within bounds.
func (w *witness) isFresh() bool { return !w.hasChanged() && time.Since(w.opened) < maxTableAge }

// hasChanged asks the kernel whether mounts have changed. It does not wait.
func (w *witness) hasChanged() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && pollNow(int(w.file.Fd())) {
		w.closeLocked()
	}
	return w.file == nil
}

// forget ends the watch.
func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked()
}

func (w *witness) closeLocked() {
	if w.file != nil {
		_ = w.file.Close() // from which nothing was written
	}
	w.file = nil
}

// pollNow reports whether the open mount table has changed, or whether that cannot be told. Polling takes the news away.
func pollNow(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}} //nolint:gosec // A descriptor fits.
	n, err := unix.Poll(fds[:], 0)
	return err != nil || n > 0
}

// listTable returns the mount table, from memory when it is as it was. The result is shared.
func (r *reader) listTable(ctx context.Context) ([]MountPoint, error) {
	s, err := r.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clip(s.table), nil // who appends to it gets a copy
}

// snapshot returns the present state of the mount table.
func (r *reader) snapshot(ctx context.Context) (*snapshot, error) {
	if s := r.current.table.Load(); s.isGood() {
		return s, nil
	}
	if err := r.current.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-r.current.reading }()
	last := r.current.table.Load()
	if last.isGood() {
		return last, nil // another caller has read it
	}
	room := 0
	if last != nil {
		room = len(last.table)
		last.forget()
	}
	s, err := r.takeSnapshot(ctx, room)
	if err != nil {
		return nil, err
	}
	r.current.keepTable(s)
	return s, nil
}

// takeSnapshot reads the table. The file is opened before, so that poll reports what changes while it is read.
func (r *reader) takeSnapshot(ctx context.Context, room int) (*snapshot, error) {
	s := &snapshot{}
	fd, err := s.open()
	if err != nil {
		return nil, err
	}
	ids := r.uniqueIDs(room)
	if canReadBothSides(ids) {
		var ok bool
		if s.table, ok, err = r.readBothSides(fd, ids); err == nil && !ok {
			s.forget() // it may have been told of a change
			fd, err = s.open()
		}
	}
	if err == nil && s.table == nil {
		s.table, err = r.readTableFrom(ctx, fd, ids)
	}
	if err != nil {
		s.forget()
		return nil, err
	}
	if !r.without.has(FeatureStatmount) {
		s.blocks = blockFilesystems(s.table)
	}
	return s, nil
}

// isGood reports whether the snapshot still shows the truth.
func (s *snapshot) isGood() bool { return s != nil && s.isFresh() && s.blocksAreSame() }

// blockFlags are the flags of a filesystem on a block device, and the unique id of a mount of it.
type blockFlags struct {
	id    uint64
	flags uint32
}

// blockFilesystems returns the filesystems on block devices.
func blockFilesystems(table []MountPoint) []blockFlags {
	var blocks []blockFlags
	var status mountStatus
	known := map[[2]uint32]bool{}
	for i := range table {
		m := &table[i]
		// Some, such as btrfs, have no major number of their own.
		if onBlock := m.Major != 0 || strings.HasPrefix(m.Source, "/dev/"); !onBlock || m.UniqueID == 0 {
			continue
		}
		device := [2]uint32{m.Major, m.Minor}
		if known[device] {
			continue
		}
		known[device] = true
		if statmountBasic(m.UniqueID, statmountSBBasic, &status) != nil {
			continue // it has gone, and poll will say so
		}
		if (status.sbFlags&unix.MS_RDONLY != 0) != slices.Contains(m.SuperOptions, "ro") {
			status.sbFlags = ^status.sbFlags // it has changed since the table was read, which is to be seen
		}
		blocks = append(blocks, blockFlags{m.UniqueID, status.sbFlags})
	}
	return blocks
}

func (s *snapshot) blocksAreSame() bool {
	var status mountStatus
	for _, b := range s.blocks {
		if statmountBasic(b.id, statmountSBBasic, &status) != nil || status.sbFlags != b.flags {
			return false
		}
	}
	return true
}
