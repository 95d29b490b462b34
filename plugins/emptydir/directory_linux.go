package emptydir

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
)

// openFlags open a directory and nothing else, and follow no link.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// makeDirectory makes dir for everybody, or for group too. What is there already was finished by an earlier call and is
// left as it is. The parent is the node's own and exists.
func makeDirectory(dir string, group *int64) error {
	parent, err := unix.Open(filepath.Dir(dir), openFlags, 0)
	if err != nil {
		return volume.Transient(fmt.Errorf("opening %s: %w", filepath.Dir(dir), err))
	}
	defer closeFD(parent)
	if ready, err := isDirectory(parent, filepath.Base(dir)); ready || err != nil {
		return err
	}
	unready := filepath.Base(partial(dir))
	if err := prepare(parent, unready, group); err != nil {
		return errors.Join(fmt.Errorf("preparing %s: %w", dir, err), unprepare(parent, unready))
	}
	if err := unix.Renameat2(parent, unready, parent, filepath.Base(dir), unix.RENAME_NOREPLACE); err != nil {
		return errors.Join(fmt.Errorf("renaming to %s: %w", dir, err), unprepare(parent, unready))
	}
	return nil
}

// isDirectory reports whether name is there; anything but a directory is an error.
func isDirectory(parent int, name string) (bool, error) {
	var stat unix.Stat_t
	err := unix.Fstatat(parent, name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("looking at %q: %w", name, err)
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return false, fmt.Errorf("%q is there and is no directory: remove it: %w", name, volume.ErrInvalid)
	}
	return true, nil
}

// prepare makes the directory name, or takes the one that a crash has left, with the mode and the group of a volume.
func prepare(parent int, name string, group *int64) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("mkdir: %w", err)
	}
	fd, err := unix.Openat(parent, name, openFlags, 0)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer closeFD(fd)
	bits := uint32(mode)
	if group != nil {
		bits |= setgid
		if err := unix.Fchown(fd, -1, int(*group)); err != nil {
			return fmt.Errorf("giving it to group %d: %w", *group, err)
		}
	}
	// After the group, since changing that clears setgid; and not by mkdir, whose mode the umask cuts.
	if err := unix.Fchmod(fd, bits); err != nil {
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

// closeFD closes a descriptor that was only looked through.
func closeFD(fd int) { _ = unix.Close(fd) }
