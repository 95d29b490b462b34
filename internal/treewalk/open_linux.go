package treewalk

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

const (
	// readFlags open a directory and nothing else, without a trace: reading it does not change its access time.
	readFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME
	// throughFlags open a directory to go through it.
	throughFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// maxStep bounds the path that one call of openat2 is given. The kernel takes 4096 bytes.
	maxStep = 4000
)

// openChild opens the directory name for reading. Only its owner may do that without a trace (EPERM). EXDEV says that it
// is foreign.
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

// openSpare calls open until the process has a descriptor for it, as long as the walk has one to spare.
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

// release ends what acquire has begun, and one wait for d.
func (w *worker) release(d *dir) {
	w.dirs.done(d)
	w.dirs.drop(d)
}

// reopen finds a directory again that was closed. On its way it leaves some open: half way down, half of the rest, and so
// on. Those who go back up a deep tree then find one near by each time, and all of their ways together are as long as the
// tree is deep times the logarithm of it.
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

// lost is the error of a directory that was not found again. That it is not where it was does not say that it is gone.
func (w *worker) lost(d *dir, errno unix.Errno) error {
	err := error(errno)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV:
		err = ErrMoved
	default: // of the filesystem
	}
	return &fs.PathError{Op: "open", Path: w.tree.pathOf(d, nil), Err: err}
}

// through opens the first of the directories that lie in each other beneath at, the last being the uppermost.
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

// step writes the path of as many directories, from the last one on, as one call takes, and returns how many are left.
func (w *worker) step(below []*dir) (left int) {
	w.path = w.path[:0]
	for left = len(below); left > 0; left-- {
		name := below[left-1].name
		tooMany := w.tree.options.Without.has(FeatureOpenat2) || len(w.path)+len(name) > maxStep
		if len(w.path) > 0 && tooMany {
			break
		}
		if len(w.path) > 0 {
			w.path[len(w.path)-1] = '/' // the zero of the name before
		}
		w.path = append(w.path, name...)
	}
	return left
}

// verify reports whether fd is the directory that it is taken for.
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
