package mount

import (
	"context"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// mounted reports whether something is mounted at the entry. It does not query the filesystem that is mounted there. If statx
// fails, the mount table decides: a bind mount can outlive its source, and the filesystem of a dead server can fail every call
// (ESTALE, EIO, ENOTCONN, EACCES).
func (p *entry) mounted(ctx context.Context) (bool, error) {
	if err := abandonable.Begin(ctx, "statx"); err != nil {
		return false, err
	}
	is, err := p.mountRoot()
	if err == nil {
		return is, nil
	}
	if isAbsent(err) && p.isMissing() {
		return false, err
	}
	inTable, tableErr := p.reader.isInTable(ctx, p.path)
	if inTable || tableErr != nil {
		return inTable, tableErr
	}
	if errors.Is(err, errNoSyscall) {
		_, err = p.stat()
	}
	return false, err
}

// isMissing reports whether the directory has no such name. Then nothing is mounted there. Unlike statx it does not query a
// filesystem that is mounted there: its server may report its own root as missing. Unlike a read of the table, its time does not
// depend on the number of mounts.
func (p *entry) isMissing() bool {
	fd, err := unix.Openat(p.parent, p.base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		closeFD(fd)
	}
	return errors.Is(err, unix.ENOENT)
}

// stat is lstat of the entry.
func (p *entry) stat() (stat unix.Stat_t, err error) {
	err = unix.Fstatat(p.parent, p.base, &stat, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	return stat, err
}

func (p *entry) mountRoot() (bool, error) {
	if p.reader.without.has(FeatureStatxMountRoot) {
		return false, errNoSyscall
	}
	return mountRoot(p.parent, p.base)
}

// mountRoot reports whether the name is the root of a mount (statx(2), STATX_ATTR_MOUNT_ROOT, since Linux 5.8).
func mountRoot(at int, name string) (bool, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var stat unix.Statx_t
	err := retry(func() error { return unix.Statx(at, name, flags, 0, &stat) })
	if err != nil {
		return false, missing(err)
	}
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, errNoSyscall
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// isMountPoint is IsMountPoint.
func (r *reader) isMountPoint(ctx context.Context, name string) (bool, error) {
	if name == "/" {
		return true, nil
	}
	p, err := r.openParent(ctx, name)
	if err != nil && isAbsent(err) && r.isDirMissing(ctx, path.Dir(name)) {
		return false, err
	}
	if err != nil {
		return r.hiddenMount(ctx, name, err)
	}
	defer p.close()
	is, err := p.mounted(ctx)
	if err != nil {
		return false, fmt.Errorf("is %q a mount point: %w", name, err)
	}
	return is, nil
}

// isDirMissing reports whether the directory, or one above it, does not exist. Then nothing is mounted beneath.
func (r *reader) isDirMissing(ctx context.Context, dir string) bool {
	for ; dir != "/"; dir = path.Dir(dir) {
		p, err := r.openParent(ctx, dir)
		if err == nil {
			defer p.close()
			return p.isMissing()
		}
		if !isAbsent(err) {
			return false
		}
	}
	return false
}

// hiddenMount looks up in the table a path that cannot be opened because of err.
func (r *reader) hiddenMount(ctx context.Context, name string, err error) (bool, error) {
	is, tableErr := r.isInTable(ctx, name)
	if is || tableErr != nil {
		return is, tableErr
	}
	return false, err
}
