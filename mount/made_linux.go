package mount

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// reportMade reports the mount whose root is open as fd, once it is attached at target.
func (c changer) reportMade(ctx context.Context, fd int, target string) {
	if !reportsMade(ctx) {
		return
	}
	found, err := c.reader.ofRoot(fd, target)
	if errors.Is(err, errNoSyscall) {
		found, err = c.reader.mountOf(ctx, fd)
	}
	if err == nil {
		ReportMade(ctx, target, found)
	}
}

// ofRoot returns the facts of the mount at name whose root is open as fd, from statmount.
func (r *reader) ofRoot(fd int, name string) (MountPoint, error) {
	var stat unix.Statx_t
	err := unix.Statx(fd, "", statFlags|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &stat)
	if err != nil || stat.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return MountPoint{}, errNoSyscall
	}
	return r.factsAt(stat.Mnt_id, name)
}
