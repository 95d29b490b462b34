package mount

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// tellMade reports the mount whose root fd is, once it is attached at target.
func (m *Mounter) tellMade(ctx context.Context, fd int, target string) {
	if !isTold(ctx) {
		return
	}
	found, err := m.ofRoot(fd)
	if errors.Is(err, errNoSyscall) {
		found, err = m.mountOf(ctx, fd)
	}
	if err == nil {
		TellMade(ctx, target, found)
	}
}

// ofRoot returns the facts of the mount whose root fd is, as statmount tells them.
func (m *Mounter) ofRoot(fd int) (MountPoint, error) {
	var stat unix.Statx_t
	err := unix.Statx(fd, "", glanceFlags|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &stat)
	if err != nil || stat.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return MountPoint{}, errNoSyscall
	}
	return m.facts(stat.Mnt_id)
}
