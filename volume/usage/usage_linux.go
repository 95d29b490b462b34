package usage

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// blockSize is the unit of st_blocks, whatever the filesystem's own block is. See stat(3type).
	blockSize = 512
	// maxOpen is how many directories of the current path stay open. Those above are found again through "..".
	maxOpen = 32
	// readSize is how many bytes of directory entries are read at once.
	readSize = 32 << 10
)

// walkTree measures the tree at root by a walk.
func walkTree(ctx context.Context, root string) (Usage, error) {
	w := &walk{ctxErr: ctx.Err, root: root, links: map[inode]bool{}, buf: make([]byte, readSize)}
	defer w.close()
	if err := w.start(); err != nil {
		return Usage{}, err
	}
	for len(w.path) > 0 {
		if err := w.step(); err != nil {
			return Usage{}, err
		}
	}
	return w.used, nil
}

// walk is one measurement. It goes through the tree depth first.
type walk struct {
	ctxErr func() error
	root   string
	dev    uint64 // of root: what has another one is foreign
	links  map[inode]bool
	path   []dir // the directories from root to the current one
	buf    []byte
	used   Usage
}

// dir is a directory whose files are counted already.
type dir struct {
	fd   int // -1 when it was closed to save descriptors
	id   inode
	name string
	todo []string // directories below that are still to be entered
}

// start counts the root and enters it if it is a directory.
func (w *walk) start() error {
	fd, err := openDir(unix.AT_FDCWD, w.root)
	if err != nil {
		return w.startAtFile(err)
	}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		closeDir(fd)
		return w.failed("stat", "", err)
	}
	w.dev = st.Dev
	w.count(&st)
	return w.enter(dir{fd: fd, id: idOf(&st)})
}

// startAtFile counts a root that could not be opened as a directory because it is none.
func (w *walk) startAtFile(cause error) error {
	if !notDirectory(cause) {
		return w.failed("open", "", cause)
	}
	var st unix.Stat_t
	if err := statAt(unix.AT_FDCWD, w.root, &st); err != nil {
		return w.failed("stat", "", err)
	}
	w.count(&st)
	return nil
}

// step enters the next directory, or goes back up when there is none.
func (w *walk) step() error {
	current := &w.path[len(w.path)-1]
	if len(current.todo) == 0 {
		return w.leave()
	}
	name := current.todo[len(current.todo)-1]
	current.todo = current.todo[:len(current.todo)-1]
	fd, err := openDir(current.fd, name)
	switch {
	case errors.Is(err, unix.ENOENT), notDirectory(err):
		return nil // it vanished, or became something else, after it was counted
	case err != nil:
		return w.failed("open", name, err)
	}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		closeDir(fd)
		return w.failed("stat", name, err)
	}
	if st.Dev != w.dev {
		closeDir(fd)
		return nil // something was mounted there after it was counted
	}
	return w.enter(dir{fd: fd, id: idOf(&st), name: name})
}

// enter makes d the current directory and counts what is in it.
func (w *walk) enter(d dir) error {
	w.path = append(w.path, d)
	if above := len(w.path) - 1 - maxOpen; above >= 0 {
		closeDir(w.path[above].fd)
		w.path[above].fd = -1
	}
	for {
		if err := w.ctxErr(); err != nil {
			return err
		}
		var n int
		err := retry(func() (err error) {
			n, err = unix.Getdents(d.fd, w.buf)
			return err
		})
		switch {
		case errors.Is(err, unix.ENOENT): // the directory was removed
			return nil
		case err != nil:
			return w.failed("readdir", "", err)
		case n == 0:
			return nil
		}
		if err := w.countEntries(w.buf[:n]); err != nil {
			return err
		}
	}
}

// countEntries counts what the directory entries in buf name.
func (w *walk) countEntries(buf []byte) error {
	current := &w.path[len(w.path)-1]
	_, _, names := unix.ParseDirent(buf, -1, nil)
	for _, name := range names {
		var st unix.Stat_t
		err := statAt(current.fd, name, &st)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			return w.failed("stat", name, err)
		case st.Dev != w.dev:
			continue
		}
		w.count(&st)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			current.todo = append(current.todo, name)
		}
	}
	return nil
}

// count adds one file. One with several links counts the first time that it is seen.
func (w *walk) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		id := idOf(st)
		if w.links[id] {
			return
		}
		w.links[id] = true
	}
	w.used.Bytes += st.Blocks * blockSize
	w.used.Inodes++
}

// leave goes back to the parent of the current directory, which it finds through ".." when it was closed.
func (w *walk) leave() error {
	last := len(w.path) - 1
	current := w.path[last]
	if last > 0 && w.path[last-1].fd < 0 {
		if err := w.reopen(&w.path[last-1], current.fd); err != nil {
			return err
		}
	}
	closeDir(current.fd)
	w.path = w.path[:last]
	return nil
}

func (w *walk) reopen(parent *dir, below int) error {
	fd, err := openDir(below, "..")
	if err != nil {
		return w.failed("open", "..", err)
	}
	var st unix.Stat_t
	if err = retry(func() error { return unix.Fstat(fd, &st) }); err == nil && idOf(&st) != parent.id {
		err = ErrChanged
	}
	if err != nil {
		closeDir(fd)
		return w.failed("open", "..", err)
	}
	parent.fd = fd
	return nil
}

// failed wraps err with the path of name in the current directory.
func (w *walk) failed(op, name string, err error) error {
	elements := []string{w.root}
	for _, d := range w.path {
		elements = append(elements, d.name)
	}
	return &fs.PathError{Op: op, Path: filepath.Join(append(elements, name)...), Err: err}
}

// close closes what is still open.
func (w *walk) close() {
	for _, d := range w.path {
		if d.fd >= 0 {
			closeDir(d.fd)
		}
	}
}

func idOf(st *unix.Stat_t) inode { return inode{dev: st.Dev, ino: st.Ino} }

// notDirectory reports whether err is that of opening something that is not a directory; ELOOP is a symbolic link's.
func notDirectory(err error) bool { return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) }

func openDir(at int, name string) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func statAt(at int, name string, st *unix.Stat_t) error {
	return retry(func() error { return unix.Fstatat(at, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// closeDir closes a descriptor that was only read from; Linux closes it whatever close returns.
func closeDir(fd int) { _ = unix.Close(fd) }
