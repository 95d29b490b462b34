package emptydir

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

// openFlags open a directory and nothing else, and follow no link.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// makeDirectory makes dir for everybody, or for group too. What is there already was finished by an earlier call and is
// left as it is. The parent is the node's own and exists.
func makeDirectory(ctx context.Context, dir string, group *int64) error {
	parent, err := unix.Open(filepath.Dir(dir), openFlags, 0)
	if err != nil {
		return volume.Transient(fmt.Errorf("opening %s: %w", filepath.Dir(dir), err))
	}
	defer closeFD(parent)
	if ready, err := isDirectory(parent, filepath.Base(dir)); ready || err != nil {
		return err
	}
	unready := filepath.Base(partial(dir))
	if err := errors.Join(prepare(parent, unready), own(ctx, partial(dir), group)); err != nil {
		return errors.Join(fmt.Errorf("preparing %s: %w", dir, err), unprepare(parent, unready))
	}
	if err := rename(parent, unready, filepath.Base(dir)); err != nil {
		return errors.Join(fmt.Errorf("renaming to %s: %w", dir, err), unprepare(parent, unready))
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

// prepare makes the directory name, or takes the one that a crash has left, with the mode of a volume.
func prepare(parent int, name string) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("mkdir: %w", err)
	}
	fd, err := unix.Openat(parent, name, openFlags, 0)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer closeFD(fd)
	if err := unix.Fchmod(fd, mode); err != nil { // not by mkdir, whose mode the umask cuts
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

// own gives the directory to a group, if one is asked for.
func own(ctx context.Context, dir string, group *int64) error {
	_, err := ownership.Apply(ctx, dir, ownership.Options{Group: group})
	return err
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
