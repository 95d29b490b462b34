package treewalk

import (
	"bytes"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

// Entry is a name beneath the root, with its inode.
type Entry struct {
	// Stat is the result of statx: for the name, or for the pinned inode once the entry is pinned.
	Stat unix.Statx_t

	worker *worker
	dir    *dir
	at     int    // the descriptor of dir
	name   []byte // ends at the first zero; the bytes after that have no meaning
	fd     int    // -1 if the entry is not pinned
}

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return isDir(&e.Stat) }

// FD returns the descriptor of a pinned entry, or -1. The walk closes it.
func (e *Entry) FD() int { return e.fd }

// Path returns the path of the entry, for messages. Do not open it. A very long path is shortened in the middle.
func (e *Entry) Path() string { return e.worker.tree.pathOf(e.dir, e.name) }

// Pin opens the entry without access (O_PATH) and reads Stat again. Stat and FD are then about the same inode, also if the name
// is replaced. The walk pins the next entries before their visit, while visitors keep calling Pin.
//
// If the entry has vanished, the error matches fs.ErrNotExist. If a filesystem was mounted there, it matches [ErrForeign]. The
// walk has counted both. Any other error is a *fs.PathError.
func (e *Entry) Pin() error {
	e.worker.pinning = true
	if e.fd >= 0 {
		return nil
	}
	return e.worker.skipped(e.open(), e)
}

// skipped counts a vanished or foreign entry, and returns the error for errno.
func (w *worker) skipped(errno unix.Errno, e *Entry) error {
	switch errno {
	case 0:
		return nil
	case unix.ENOENT:
		w.tree.vanished.Add(1)
		return fs.ErrNotExist
	case unix.EXDEV:
		w.tree.foreign.Add(1)
		return ErrForeign
	default:
		return &fs.PathError{Op: "statx", Path: e.Path(), Err: errno}
	}
}

// open pins the entry. EXDEV means that it is foreign.
func (e *Entry) open() unix.Errno {
	fd, errno := e.worker.openSpare(func() (int, unix.Errno) {
		return openat(e.at, &e.name[0], unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	})
	if errno != 0 {
		return errno
	}
	e.fd = fd
	return e.worker.tree.look(fd, empty(), byFD, &e.Stat)
}

// unpin closes the descriptor of a pinned entry.
func (e *Entry) unpin() {
	if e.fd >= 0 {
		closeFD(e.fd)
		e.fd = -1
	}
}

// look calls statx, and does not wait for a filesystem that may be mounted there. EXDEV means that the name is foreign.
func (t *Tree) look(at int, name *byte, flags int, st *unix.Statx_t) unix.Errno {
	if errno := statx(at, name, flags|unix.AT_STATX_DONT_SYNC, t.options.Mask, st); errno != 0 {
		return errno
	}
	if t.isForeign(at, flags, st) {
		return unix.EXDEV
	}
	if !t.ask {
		return 0
	}
	return statx(at, name, flags, t.options.Mask, st)
}

// isForeign reports whether st is of the root of another mount. If the kernel does not report that in st, at must be a descriptor
// of the entry itself.
func (t *Tree) isForeign(at, flags int, st *unix.Statx_t) bool {
	if st.Attributes&(unix.STATX_ATTR_MOUNT_ROOT|unix.STATX_ATTR_AUTOMOUNT) != 0 && !t.options.Without.has(FeatureMountRoot) {
		return true
	}
	if t.options.OneDevice && (st.Dev_major != t.stat.Dev_major || st.Dev_minor != t.stat.Dev_minor) {
		return true
	}
	if !t.options.Without.has(FeatureMountRoot) || flags&unix.AT_EMPTY_PATH == 0 {
		return false
	}
	id, err := descriptor.MountID(at)
	return err != nil || id != t.mountID
}

// maxPath is the longest path in a message, in bytes. The kernel takes paths that are twice as long.
const maxPath = 2048

// pathOf returns the path of name in dir, or of dir if name is empty.
func (t *Tree) pathOf(dir *dir, name []byte) string {
	elements := [][]byte{trimZero(name)}
	length := len(elements[0])
	for ; dir != nil && dir.parent != nil; dir = dir.parent {
		if length += len(dir.name); length > maxPath {
			elements = append(elements, []byte("..."))
			break
		}
		elements = append(elements, trimZero(dir.name))
	}
	path := []byte(t.path)
	for _, element := range slices.Backward(elements) {
		if len(element) > 0 {
			path = append(append(path, '/'), element...)
		}
	}
	return string(path)
}

// trimZero returns a name without the zero at its end and the bytes after that.
func trimZero(name []byte) []byte {
	before, _, _ := bytes.Cut(name, dots[1:])
	return before
}
