package safepath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// dirMode is the mode of directories for which the caller gives none.
const dirMode fs.FileMode = 0o750

// permissions are the bits of chmod(2).
const permissions = 0o7777

// madeDir is a directory that was made.
type madeDir struct {
	name string // beneath the root
	id   fileID
}

// mkdirAll is MkdirAll.
func (t *tree) mkdirAll(ctx context.Context, name string, options MkdirOptions) error {
	fd, made, err := t.makeDirs(ctx, name, how{directory: true}, options)
	if err != nil {
		return errors.Join(err, t.unmake(ctx, made))
	}
	closeFD(fd)
	return nil
}

// makeDirs opens the directory name, and makes what is missing of it. What it made is told of in any case.
func (t *tree) makeDirs(ctx context.Context, name string, h how, options MkdirOptions) (int, []madeDir, error) {
	fd, err := t.openPath(ctx, t.fd, name, h)
	if !errors.Is(err, unix.ENOENT) {
		return fd, nil, t.notDirectory(ctx, t.fd, name, err)
	}
	fd, err = t.openPath(ctx, t.fd, ".", how{directory: true})
	var made []madeDir
	for prefix := range prefixes(name) {
		if err != nil {
			break
		}
		_, base := splitName(prefix)
		next, id, nextErr := t.makeDir(ctx, fd, base, h, options)
		closeFD(fd)
		if id != nil {
			made = append(made, madeDir{prefix, *id})
		}
		fd, err = next, nextErr
	}
	return fd, made, err
}

// makeDir opens the directory base in at, and makes it if it is missing; then it returns its identity, too.
func (t *tree) makeDir(ctx context.Context, at int, base string, h how, options MkdirOptions) (int, *fileID, error) {
	for range maxTries {
		fd, err := t.openPath(ctx, at, base, h)
		if !errors.Is(err, unix.ENOENT) {
			return fd, nil, t.notDirectory(ctx, at, base, err)
		}
		if err := abandonable.Begin(ctx, "mkdirat"); err != nil {
			return -1, nil, err
		}
		mode := unixMode(cmp.Or(options.Mode, dirMode))
		err = unix.Mkdirat(at, base, mode&0o1777)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return -1, nil, fmt.Errorf("mkdirat: %w", err)
		}
		// What was made is opened in any case: who does not know it cannot remove it again.
		fd, err = t.openPath(context.WithoutCancel(ctx), at, base, h)
		if errors.Is(err, unix.ENOENT) {
			continue // a workload was quick to remove it
		}
		if err != nil {
			return -1, nil, t.notDirectory(ctx, at, base, err)
		}
		return t.finish(fd, mode, options.Group)
	}
	return -1, nil, fmt.Errorf("making %q: after %d tries: %w", base, maxTries, ErrRaced)
}

// notDirectory makes of ENOTDIR, which may be about an element above, an error about the last one where it is. By the time
// that it looks there may be a directory; err is an error all the same.
func (t *tree) notDirectory(ctx context.Context, at int, name string, err error) error {
	if !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	fd, otherErr := t.openPath(ctx, at, name, how{})
	if otherErr != nil {
		return err
	}
	defer closeFD(fd)
	if kindErr := checkKind(fd, Directory); kindErr != nil {
		return kindErr
	}
	return err
}

// finish gives a directory that was just made its mode and group. It closes fd when that fails.
func (t *tree) finish(fd int, mode uint32, group *int) (int, *fileID, error) {
	now, err := statx(fd, "", 0)
	if err != nil {
		closeFD(fd)
		return -1, nil, err
	}
	if uint32(now.Mode)&permissions == mode && (group == nil || uint32(*group) == now.GID) {
		return fd, &now.id, nil
	}
	if err := t.change(fd, now, mode, group); err != nil {
		closeFD(fd)
		return -1, &now.id, err
	}
	return fd, &now.id, nil
}

// change changes mode and group of a directory that is proven to be new.
func (t *tree) change(path int, now stat, mode uint32, group *int) error {
	fd, err := openat(path, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), "directory")
	defer closeFile(dir)
	if err := checkNew(dir, fd, now); err != nil {
		return err
	}
	if group != nil && uint32(*group) != now.GID {
		if err := unix.Fchown(fd, -1, *group); err != nil {
			return fmt.Errorf("giving it to group %d: %w", *group, err)
		}
	}
	// After the group, since changing that clears setgid.
	if err := unix.Fchmod(fd, mode); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return nil
}

// serverOwned are the filesystems on which a file may belong to another user than the one who made it, because a server decides
// that. Such a server also decides who may change a mode.
var serverOwned = []int64{
	unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
	unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC,
}

// checkNew refuses a directory that a workload has put in the place of the one that was made.
func checkNew(dir *os.File, fd int, now stat) error {
	switch _, err := dir.Readdirnames(1); {
	case err == nil:
		return fmt.Errorf("a directory that was just made is not empty: %w", ErrRaced)
	case !errors.Is(err, io.EOF):
		return err
	}
	if int(now.UID) == os.Geteuid() || isServerOwned(fd) {
		return nil
	}
	return fmt.Errorf("a directory that was just made belongs to user %d: %w", now.UID, ErrRaced)
}

func isServerOwned(fd int) bool {
	var s unix.Statfs_t
	_, err := retry(func() (int, error) { return 0, unix.Fstatfs(fd, &s) })
	return err == nil && slices.Contains(serverOwned, int64(s.Type)) //nolint:unconvert // narrower elsewhere
}

// unmake removes directories that were made, the lowest first, as far as they are still the same and empty.
func (t *tree) unmake(ctx context.Context, made []madeDir) error {
	ctx = context.WithoutCancel(ctx) // what was made goes also when the caller has gone
	for _, m := range slices.Backward(made) {
		if err := t.unmakeDir(ctx, m); err != nil {
			return fmt.Errorf("removing the directory %q that was made: %w", m.name, err)
		}
	}
	return nil
}

func (t *tree) unmakeDir(ctx context.Context, m madeDir) error {
	dir, base := splitName(m.name)
	at, err := t.openPath(ctx, t.fd, dir, how{directory: true})
	if err != nil {
		return ignoreGone(err)
	}
	defer closeFD(at)
	now, err := look(at, base)
	if err != nil {
		return ignoreGone(err)
	}
	if now.id != m.id {
		return nil
	}
	err = unix.Unlinkat(at, base, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		return nil // a process uses it by now
	}
	return ignoreGone(err)
}

// ignoreGone returns nil when err says that something does not exist.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// create is Create.
func (t *tree) create(ctx context.Context, name string, mode fs.FileMode) error {
	dir, base := splitName(name)
	at, err := t.openPath(ctx, t.fd, dir, how{directory: true})
	if err != nil {
		return err
	}
	defer closeFD(at)
	if err := abandonable.Begin(ctx, "openat"); err != nil {
		return err
	}
	bits := unixMode(mode)
	const flags = unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Openat(at, base, flags, bits) })
	if err != nil {
		return err
	}
	defer closeFD(fd)
	now, err := statx(fd, "", 0)
	if err == nil && uint32(now.Mode)&permissions != bits {
		err = unix.Fchmod(fd, bits)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("chmod: %w", err), uncreate(at, base, now.id))
	}
	return nil
}

// uncreate removes a file that was made, if it is still the same.
func uncreate(at int, base string, id fileID) error {
	now, err := look(at, base)
	if err == nil && now.id == id {
		err = unix.Unlinkat(at, base, 0)
	}
	return ignoreGone(err)
}
