package treewalk

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

const (
	// readFlags open a directory for reading. Reads do not change its access time.
	readFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME
	// throughFlags open a directory to open others beneath it.
	throughFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// maxStep is the longest path in bytes for one call of openat2. The kernel takes 4096.
	maxStep = 4000
)

// openChild opens a directory for reading. If only its owner may keep the access time unchanged (EPERM), it opens the directory
// without O_NOATIME. EXDEV means that the directory is foreign.
func (t *Tree) openChild(at int, name *byte) (int, unix.Errno) {
	fd, errno := t.openBeneath(at, name, readFlags)
	if errno == unix.EPERM {
		return t.openBeneath(at, name, readFlags&^unix.O_NOATIME)
	}
	return fd, errno
}

func (t *Tree) openBeneath(at int, name *byte, flags int) (int, unix.Errno) {
	if t.options.Without.has(FeatureOpenat2) {
		return openat(at, name, flags)
	}
	return openat2(at, name, flags)
}

// openSpare calls open. While the process has no free descriptor, it closes an unused directory of the walk and repeats the call.
func (w *worker) openSpare(open func() (int, unix.Errno)) (int, unix.Errno) {
	for {
		fd, errno := open()
		if (errno != unix.EMFILE && errno != unix.ENFILE) || !w.dirs.spare() {
			return fd, errno
		}
	}
}

// acquire returns a descriptor of d that stays open until release.
func (w *worker) acquire(d *dir) (int, error) {
	if fd := w.dirs.use(d); fd >= 0 {
		return fd, nil
	}
	return w.reopen(d)
}

// release ends an acquire, and removes one reference to d.
func (w *worker) release(d *dir) {
	w.dirs.done(d)
	w.dirs.drop(d)
}

// reopen opens a directory again that was closed, from the nearest open directory above it. On the way it keeps some directories
// open: half way down, half of the rest, and so on. A walk back up a deep tree then finds an open one near by each time. Together,
// these calls open as many directories as the depth of the tree times its logarithm.
func (w *worker) reopen(d *dir) (int, error) {
	above, below := w.dirs.useNearest(d)
	defer w.dirs.done(above)
	if len(below) == 0 {
		return w.acquire(d) // another goroutine was faster
	}
	at, from := above, len(below)
	for from > 0 {
		to := from / 2 // below is in order upwards: its first is d itself
		fd, errno := w.through(at.fd, below[to:from])
		if at != above {
			w.dirs.done(at)
		}
		if errno != 0 {
			return -1, w.lost(below[to], errno)
		}
		at, from = below[to], to
		w.dirs.add(at, fd)
	}
	return at.fd, nil
}

// lost returns the error of a directory that was not found again. It may have been moved, so the error does not say that it is gone.
func (w *worker) lost(d *dir, errno unix.Errno) error {
	err := error(errno)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV:
		err = ErrMoved
	default: // an error of the filesystem
	}
	return &fs.PathError{Op: "open", Path: w.tree.pathOf(d, nil), Err: err}
}

// through opens below[0]. Each directory in below contains the one before it, and at contains the last.
func (w *worker) through(at int, below []*dir) (int, unix.Errno) {
	fd := at
	for end := len(below); end > 0; {
		start := w.step(below[:end])
		next, errno := w.openSpare(func() (int, unix.Errno) {
			return w.tree.openBeneath(fd, &w.path[0], throughFlags)
		})
		if fd != at {
			closeFD(fd)
		}
		if errno != 0 {
			return -1, errno
		}
		fd, end = next, start
	}
	if errno := w.verify(fd, below[0].id); errno != 0 {
		closeFD(fd)
		return -1, errno
	}
	return fd, 0
}

// step writes the path for the next call into w.path: as many directories, from the last one on, as fit. It returns the number of
// those that remain.
func (w *worker) step(below []*dir) (left int) {
	w.path = w.path[:0]
	for left = len(below); left > 0; left-- {
		name := below[left-1].name
		tooMany := w.tree.options.Without.has(FeatureOpenat2) || len(w.path)+len(name) > maxStep
		if len(w.path) > 0 && tooMany {
			break
		}
		if len(w.path) > 0 {
			w.path[len(w.path)-1] = '/' // in place of the zero that ends the name before
		}
		w.path = append(w.path, name...)
	}
	return left
}

// verify returns an error unless fd is the directory with the inode want.
func (w *worker) verify(fd int, want inode) unix.Errno {
	var st unix.Statx_t
	if errno := w.tree.look(fd, empty(), byFD, &st); errno != 0 {
		return errno
	}
	if inodeOf(&st) != want {
		return unix.ENOENT
	}
	return 0
}
