package mount

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// tellMade reports the mount whose root fd is, once it is attached at target.
func (c changer) tellMade(ctx context.Context, fd int, target string) {
	if !isTold(ctx) {
		return
	}
	found, err := c.reader.ofRoot(fd, target)
	if errors.Is(err, errNoSyscall) {
		found, err = c.reader.mountOf(ctx, fd)
	}
	if err == nil {
		TellMade(ctx, target, found)
	}
}

// ofRoot returns the facts of the mount at name whose root fd is, as statmount tells them.
func (r *reader) ofRoot(fd int, name string) (MountPoint, error) {
	var stat unix.Statx_t
	err := unix.Statx(fd, "", glanceFlags|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &stat)
	if err != nil || stat.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return MountPoint{}, errNoSyscall
	}
	return r.factsAt(stat.Mnt_id, name)
}
