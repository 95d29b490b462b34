package mount

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

func (m MountPoint) isRoot(dir *os.File) (is bool, err error) {
	err = descriptor.With(dir, func(fd int) (err error) {
		is, err = m.isRootOf(fd)
		return err
	})
	return is, err
}

func (m MountPoint) isRootOf(fd int) (bool, error) {
	var stat unix.Statx_t
	err := retry(func() error {
		return unix.Statx(fd, "", statFlags|unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &stat)
	})
	if err != nil {
		return false, os.NewSyscallError("statx", err)
	}
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, nil
	}
	if m.UniqueID != 0 {
		return stat.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && stat.Mnt_id == m.UniqueID, nil
	}
	id, err := mountID(fd)
	return err == nil && id == m.ID, err
}
