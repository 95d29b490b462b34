package emptydir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openFlags open a directory and nothing else, and follow no link.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// makeDirectory makes the last element of dir in its parent, for everybody, or for group too. Before it gets that name, record
// is given the directory, open.
func makeDirectory(parent *os.File, dir string, group *int64, record func(made *os.File) error) error {
	at := int(parent.Fd())
	unready := filepath.Base(partial(dir))
	made, err := prepare(at, unready, group)
	if err == nil {
		err = record(made)
		_ = made.Close() // nothing was written to it
	}
	if err != nil {
		return errors.Join(fmt.Errorf("preparing %s: %w", dir, err), unprepare(at, unready))
	}
	if err := rename(at, unready, filepath.Base(dir)); err != nil {
		return errors.Join(fmt.Errorf("renaming to %s: %w", dir, err), unprepare(at, unready))
	}
	return nil
}

// rename renames a directory to a name that nothing has. Some filesystems, NFS among them, cannot promise that there is
// nothing; there an empty directory could be replaced, which somebody has made since we looked, and nothing else.
func rename(parent int, from, to string) error {
	err := unix.Renameat2(parent, from, parent, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return unix.Renameat(parent, from, parent, to)
	}
	return err
}

// prepare makes the directory name, or takes the one that a crash has left, with the mode of a volume, gives it to group, and
// returns it open.
func prepare(parent int, name string, group *int64) (*os.File, error) {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("mkdir: %w", err)
	}
	fd, err := unix.Openat(parent, name, openFlags, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if err := admit(fd, group); err != nil {
		_ = unix.Close(fd) // nothing was written to it
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// admit lets everybody write to a directory, and gives it to group.
func admit(fd int, group *int64) error {
	bits := uint32(mode)
	if group != nil {
		if err := unix.Fchown(fd, -1, int(*group)); err != nil {
			return fmt.Errorf("giving it to group %d: %w", *group, err)
		}
		bits |= setgid // after the group, since changing that clears it
	}
	if err := unix.Fchmod(fd, bits); err != nil { // not by mkdir, whose mode the umask cuts
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

// unprepare takes away what could not be finished.
func unprepare(parent int, name string) error {
	err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
