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

// maxTableAge is how long a cached table is returned without a new read. It bounds how late a change becomes visible that the
// kernel does not report.
const maxTableAge = time.Second

// tableCache keeps the last reading of the mount table. On Linux 6.18, poll(2) on the open table reports some changes and not
// others:
//
//   - reported: a mount, an unmount, a move, also when they come from a peer in another namespace or from the removal of
//     the directory there; new options of a mount by mount(2) or mount_setattr(2), the latter with its propagation; a
//     remount of a filesystem by mount(2);
//   - not reported: propagation by mount(2); a filesystem that is changed by fsconfig(2), from another namespace or by its
//     own failure (emergency_ro); a rename of a directory above a mount point, or above what a bind shows.
//
// So a cached table is returned again only under three conditions. Poll reports no change. The flags of each filesystem on a
// block device are unchanged: these are the filesystems that the kernel turns read-only. The table is at most maxTableAge old.
//
// The cache holds one open descriptor: that of the table, or that of the references of one mount. References are queried only
// while there is no current table.
type tableCache struct {
	// reading holds a token during a read of the table or a query for references. Callers that wait for it share the result.
	reading chan struct{}
	table   atomic.Pointer[snapshot]
	refs    atomic.Pointer[refsSnapshot]
	roots   atomic.Pointer[rootsOfMounts] // nil until a caller asks for references
}

func newTableCache() *tableCache { return &tableCache{reading: make(chan struct{}, 1)} }

// keepTable stores a table that was just read, and drops the references.
func (c *tableCache) keepTable(s *snapshot) {
	c.table.Store(s)
	c.dropRefs()
}

// keepRefs stores references, unless a table was stored meanwhile. keepTable and keepRefs each store their own value before they
// read the other's. When both run at once, at least one of them sees both.
func (c *tableCache) keepRefs(s *refsSnapshot) {
	if old := c.refs.Swap(s); old != nil {
		old.close()
	}
	switch table := c.table.Load(); {
	case table == nil:
	case table.isFresh():
		c.dropRefs()
	default:
		table.close() // it is too old
	}
}

// dropRefs forgets the references.
func (c *tableCache) dropRefs() {
	if old := c.refs.Swap(nil); old != nil {
		old.close()
	}
}

// acquire takes the token for reading the table. It calls ctx.Done only when it must wait. The first call of Done makes the
// context's channel, and a bubble of testing/synctest must not make one for a context from outside.
func (c *tableCache) acquire(ctx context.Context) error {
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
	tableWatch

	table  []MountPoint
	blocks []blockFlags

	indexOnce sync.Once
	indexed   *tableIndex
}

// index returns the index of the table. The first call makes it.
func (s *snapshot) index() *tableIndex {
	s.indexOnce.Do(func() { s.indexed = newTableIndex(s.table) })
	return s.indexed
}

// tableWatch is an open mount table. Poll on it reports whether mounts have changed since it was opened.
type tableWatch struct {
	opened time.Time

	mu   sync.Mutex // held over a poll that does not wait: a poll consumes the change that it reports
	file *os.File   // nil when there was a change; its finalizer closes it when the Mounter is forgotten
}

// open begins to watch for changes.
func (w *tableWatch) open() (fd int, err error) {
	if fd, err = openTable(); err != nil {
		return -1, err
	}
	w.opened, w.file = time.Now(), os.NewFile(uintptr(fd), tablePath)
	return fd, nil
}

// isFresh reports whether poll has reported no change and the table is younger than maxTableAge.
func (w *tableWatch) isFresh() bool { return !w.hasChanged() && time.Since(w.opened) < maxTableAge }

// hasChanged polls the table for a change. It does not wait.
func (w *tableWatch) hasChanged() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && pollNow(int(w.file.Fd())) {
		w.closeLocked()
	}
	return w.file == nil
}

// close ends the watch.
func (w *tableWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked()
}

func (w *tableWatch) closeLocked() {
	if w.file != nil {
		_ = w.file.Close() // it was opened for reading
	}
	w.file = nil
}

// pollNow reports whether the open mount table has changed. An error of poll counts as a change. A second poll does not report
// the same change again.
func pollNow(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}} //nolint:gosec // A descriptor fits.
	n, err := unix.Poll(fds[:], 0)
	return err != nil || n > 0
}

// listTable returns the mount table, from the cache if it is current. Callers share the result.
func (r *reader) listTable(ctx context.Context) ([]MountPoint, error) {
	s, err := r.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clip(s.table), nil // an append copies it
}

// snapshot returns the present state of the mount table.
func (r *reader) snapshot(ctx context.Context) (*snapshot, error) {
	if s := r.cache.table.Load(); s.isCurrent() {
		return s, nil
	}
	if err := r.cache.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-r.cache.reading }()
	last := r.cache.table.Load()
	if last.isCurrent() {
		return last, nil // another caller has read it
	}
	room := 0
	if last != nil {
		room = len(last.table)
		last.close()
	}
	s, err := r.takeSnapshot(ctx, room)
	if err != nil {
		return nil, err
	}
	r.cache.keepTable(s)
	return s, nil
}

// takeSnapshot reads the table. It opens the file first: poll then also reports changes during the read.
func (r *reader) takeSnapshot(ctx context.Context, room int) (*snapshot, error) {
	s := &snapshot{}
	fd, err := s.open()
	if err != nil {
		return nil, err
	}
	ids := r.uniqueIDs(room)
	if canReadBothEnds(ids) {
		var ok bool
		if s.table, ok, err = r.readBothEnds(fd, ids); err == nil && !ok {
			s.close() // its poll may have consumed a change
			fd, err = s.open()
		}
	}
	if err == nil && s.table == nil {
		s.table, err = r.readTableFrom(ctx, fd, ids)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	if !r.without.has(FeatureStatmount) {
		s.blocks = blockFilesystems(s.table)
	}
	return s, nil
}

// isCurrent reports whether the snapshot may still be returned (see tableCache).
func (s *snapshot) isCurrent() bool { return s != nil && s.isFresh() && s.blocksUnchanged() }

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
			continue // it is unmounted; poll reports that
		}
		if (status.sbFlags&unix.MS_RDONLY != 0) != slices.Contains(m.SuperOptions, "ro") {
			status.sbFlags = ^status.sbFlags // it has changed since the read: blocksUnchanged must return false
		}
		blocks = append(blocks, blockFlags{m.UniqueID, status.sbFlags})
	}
	return blocks
}

func (s *snapshot) blocksUnchanged() bool {
	var status mountStatus
	for _, b := range s.blocks {
		if statmountBasic(b.id, statmountSBBasic, &status) != nil || status.sbFlags != b.flags {
			return false
		}
	}
	return true
}
