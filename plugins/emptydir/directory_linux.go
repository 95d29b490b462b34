package emptydir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openFlags open only a directory, and follow no link.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// makeDirectory makes the last element of dir in parent, writable for every user, and gives it to group unless that is nil.
// It calls record with the open directory before the directory gets its final name.
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

// rename renames a directory to a name that must not exist. Some filesystems, NFS among them, cannot refuse an existing
// name. There, rename could replace an empty directory that another process made since the check, and nothing else.
func rename(parent int, from, to string) error {
	err := unix.Renameat2(parent, from, parent, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return unix.Renameat(parent, from, parent, to)
	}
	return err
}

// prepare makes the directory name, or takes over the one of a set-up that crashed. It sets the mode and the group of a
// volume, and returns the open directory.
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

// admit lets every user write to a directory, and gives it to group.
func admit(fd int, group *int64) error {
	bits := uint32(mode)
	if group != nil {
		if err := unix.Fchown(fd, -1, int(*group)); err != nil {
			return fmt.Errorf("giving it to group %d: %w", *group, err)
		}
		bits |= setgid // set after chown, because chown clears it
	}
	if err := unix.Fchmod(fd, bits); err != nil { // mkdir would apply the umask to the mode
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

// unprepare removes an incomplete directory.
func unprepare(parent int, name string) error {
	err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
