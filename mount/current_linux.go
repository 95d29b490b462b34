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
	"unsafe"

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
// So a table is handed out again when poll reports nothing, no filesystem on a block device has other options, as those
// are the ones that turn read-only by themselves, and it is at most maxTableAge old.
type current struct {
	// reading holds a token while the table is read, so that it is read once for all who ask.
	reading chan struct{}
	table   atomic.Pointer[snapshot]
	refs    atomic.Pointer[refsSnapshot]
}

func newCurrent() *current { return &current{reading: make(chan struct{}, 1)} }

// snapshot is one reading of the whole table.
type snapshot struct {
	witness

	table  []MountPoint
	blocks []blockOptions
	index  func() *tableIndex
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
	if w.file != nil && pollNow(w.file) {
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
func pollNow(file *os.File) bool {
	fds := [1]unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLPRI}} //nolint:gosec // A descriptor fits.
	n, err := unix.Poll(fds[:], 0)
	return err != nil || n > 0
}

// listTable returns the mount table, from memory when it is as it was. The result is shared.
func (m *Mounter) listTable(ctx context.Context) ([]MountPoint, error) {
	s, err := m.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.table, nil
}

// snapshot returns the present state of the mount table.
func (m *Mounter) snapshot(ctx context.Context) (*snapshot, error) {
	if s := m.current.table.Load(); s.isGood() {
		return s, nil
	}
	select {
	case m.current.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("the mount table was not read: %w: %w", ErrTransient, ctx.Err())
	}
	defer func() { <-m.current.reading }()
	last := m.current.table.Load()
	if last.isGood() {
		return last, nil // somebody else has read it
	}
	room := 0
	if last != nil {
		room = len(last.table)
		last.forget()
	}
	s, err := m.takeSnapshot(ctx, room)
	if err != nil {
		return nil, err
	}
	m.current.table.Store(s)
	return s, nil
}

// takeSnapshot reads the table. The file is opened before, so that poll reports what changes while it is read.
func (m *Mounter) takeSnapshot(ctx context.Context, room int) (*snapshot, error) {
	s := &snapshot{}
	fd, err := s.open()
	if err != nil {
		return nil, err
	}
	if s.table, err = m.readTableFrom(ctx, fd, room); err != nil {
		s.forget()
		return nil, err
	}
	s.index = sync.OnceValue(func() *tableIndex { return newTableIndex(s.table) })
	if !m.without.has(FeatureStatmount) {
		s.blocks = blockFilesystems(s.table)
	}
	return s, nil
}

// isGood reports whether the snapshot still shows the truth.
func (s *snapshot) isGood() bool { return s != nil && s.isFresh() && s.blocksAreSame() }

// blockOptions are the options of a filesystem on a block device, and the unique id of a mount of it.
type blockOptions struct {
	id   uint64
	text string
}

// blockFilesystems returns the filesystems on block devices.
func blockFilesystems(table []MountPoint) []blockOptions {
	var blocks []blockOptions
	var buffer superBuffer
	known := map[[2]uint32]bool{}
	for i := range table {
		m := &table[i]
		device := [2]uint32{m.Major, m.Minor}
		// Some, such as btrfs, have no major number of their own.
		if onBlock := m.Major != 0 || strings.HasPrefix(m.Source, "/dev/"); !onBlock || m.UniqueID == 0 || known[device] {
			continue
		}
		known[device] = true
		if text, err := buffer.ask(m.UniqueID); err == nil { // else it has gone, and poll will say so
			blocks = append(blocks, blockOptions{m.UniqueID, string(text)})
		}
	}
	return blocks
}

func (s *snapshot) blocksAreSame() bool {
	if len(s.blocks) == 0 {
		return true
	}
	var buffer superBuffer
	return !slices.ContainsFunc(s.blocks, func(b blockOptions) bool {
		text, err := buffer.ask(b.id)
		return err != nil || string(text) != b.text
	})
}

// superBuffer holds what statmount says of a filesystem.
type superBuffer [statmountBuffer]byte

// ask returns the flags and the options of the filesystem that the mount shows, in a form that is good for comparison only
// and until the next call.
func (b *superBuffer) ask(id uint64) ([]byte, error) {
	request := statmountRequest{id: id, param: statmountSBBasic | statmountMntOpts}
	request.size = uint32(unsafe.Sizeof(request))
	if err := retry(func() error { return statmountInto(&request, b[:]) }); err != nil {
		return nil, err
	}
	size := (*mountStatus)(unsafe.Pointer(b)).size
	return b[:min(int(size), len(b))], nil
}
