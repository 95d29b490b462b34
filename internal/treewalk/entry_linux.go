package treewalk

import (
	"bytes"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

// Entry is a name beneath the root and what it leads to.
type Entry struct {
	// Stat is what statx says: of the name, or once it is pinned, of what is pinned.
	Stat unix.Statx_t

	worker *worker
	dir    *dir
	at     int    // the descriptor of dir
	name   []byte // ended by a zero, with rubbish behind it
	fd     int    // -1 when not pinned
}

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return isDir(&e.Stat) }

// FD returns the descriptor that [Entry.Pin] has opened, or -1. The walk closes it.
func (e *Entry) FD() int { return e.fd }

// Path returns the path of the entry for messages. It is never to be opened. A path that is too long to be read is cut in
// the middle.
func (e *Entry) Path() string { return e.worker.tree.pathOf(e.dir, e.name) }

// Pin opens the entry without access (O_PATH) and asks it again, so that Stat and FD are about one and the same inode,
// which cannot be swapped. The entries after it are then pinned from the start, as long as visitors go on to ask for it.
//
// An error that matches fs.ErrNotExist says that the entry has vanished, one that matches [ErrForeign] that something was
// mounted there; the walk has counted both. Any other error is a *fs.PathError.
func (e *Entry) Pin() error {
	e.worker.pinning = true
	if e.fd >= 0 {
		return nil
	}
	return e.worker.skipped(e.open(), e)
}

// skipped counts the entry that was left out because of errno and makes an error of it.
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

// open pins the entry. EXDEV says that it is foreign.
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

// unpin closes what was pinned.
func (e *Entry) unpin() {
	if e.fd >= 0 {
		closeFD(e.fd)
		e.fd = -1
	}
}

// look asks what there is, without waiting for what may be mounted there. EXDEV says that it is foreign.
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

// isForeign reports whether what st describes is the root of another mount. Where the kernel does not say so, at must be
// its own descriptor.
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

// maxPath bounds the paths of messages; the longest that the kernel takes is twice as long.
const maxPath = 2048

// pathOf returns the path of name in dir, or of dir when name is empty.
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

// trimZero cuts the zero at the end of a name, and what is behind it.
func trimZero(name []byte) []byte {
	before, _, _ := bytes.Cut(name, dots[1:])
	return before
}
