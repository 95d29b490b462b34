package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
)

// maxDepth bounds the descriptors that the walk has open: one for each level.
const maxDepth = 1000

// setGroup gives everything below dir, and dir last, to a group, so that a walk that was cut short is seen at the root.
func setGroup(ctx context.Context, dir string, wanted group) error {
	root, err := openDirAt(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	defer root.Close()
	st, err := fstat(root)
	if err != nil {
		return err
	}
	if wanted.onlyRoot && int(st.Gid) == wanted.gid && st.Mode&dirBits == dirBits && st.Mode&setgid != 0 {
		return nil
	}
	w := ownershipWalk{ctx: ctx.Err, gid: wanted.gid, dev: st.Dev}
	return w.dir(root, st, 0)
}

type ownershipWalk struct {
	ctx func() error
	gid int
	dev uint64
}

// dir changes what is in an open directory, then the directory.
func (w ownershipWalk) dir(dir *os.File, st unix.Stat_t, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%q has more than %d levels of directories: %w", dir.Name(), maxDepth, volume.ErrUnsupported)
	}
	for {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			return w.apply(dir, st)
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := w.entry(dir, name, depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
}

// entry changes one entry. What is of another filesystem, mounted there, is left alone.
func (w ownershipWalk) entry(parent *os.File, name string, depth int) error {
	if err := w.ctx(); err != nil {
		return err
	}
	entry, err := openAt(parent, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer entry.Close()
	st, err := fstat(entry)
	if err != nil || st.Dev != w.dev {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.apply(entry, st)
	}
	dir, err := openAt(entry, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	entry.Close() // one descriptor for each level is enough
	return w.dir(dir, st, depth+1)
}

// apply changes group and mode of an open entry. A link has a group, and no mode.
func (w ownershipWalk) apply(entry *os.File, st unix.Stat_t) error {
	return control(entry, func(fd int) error {
		if int(st.Gid) != w.gid {
			if err := unix.Fchownat(fd, "", -1, w.gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fmt.Errorf("chown of %q: %w", entry.Name(), err)
			}
		}
		mode, bits := st.Mode&0o7777, uint32(fileBits)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			return nil
		case unix.S_IFDIR:
			bits = dirBits | setgid
		default:
			mode &^= unix.S_ISUID | unix.S_ISGID // as the kernel does when a file changes hands
		}
		if st.Mode&bits == bits && int(st.Gid) == w.gid {
			return nil
		}
		// The descriptor may be one without access (O_PATH), which fchmod refuses; its name under /proc leads nowhere else.
		if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode|bits); err != nil {
			return fmt.Errorf("chmod of %q: %w", entry.Name(), err)
		}
		return nil
	})
}

func openDirAt(at int, path string) (*os.File, error) {
	fd, err := unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openAt(parent *os.File, name string, flags int) (*os.File, error) {
	var fd int
	err := control(parent, func(at int) (err error) {
		fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening %q in %q: %w", name, parent.Name(), err)
	}
	return os.NewFile(uintptr(fd), parent.Name()+"/"+name), nil
}

func fstat(file *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := control(file, func(fd int) error { return unix.Fstat(fd, &st) })
	return st, err
}
