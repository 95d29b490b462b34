package loopblock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// isRootOf reports whether an open directory is the root of a mount that was looked up while the directory was open: only so long
// does the kernel give the mount's id to no other.
func isRootOf(dir *os.File, there mount.MountPoint) (bool, error) {
	raw, err := dir.SyscallConn()
	if err != nil {
		return false, err
	}
	var is bool
	var inner error
	err = raw.Control(func(fd uintptr) { is, inner = isRootOfDescriptor(int(fd), there) })
	return is, errors.Join(err, inner)
}

func isRootOfDescriptor(fd int, there mount.MountPoint) (bool, error) {
	var stat unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &stat)
	if err != nil {
		return false, os.NewSyscallError("statx", err)
	}
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, nil
	}
	if there.UniqueID != 0 {
		return stat.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && stat.Mnt_id == there.UniqueID, nil
	}
	id, err := mountID(fd)
	return err == nil && id == there.ID, err
}

// mountID returns the id that the mount table has, as Linux before 5.8 tells it too.
func mountID(fd int) (uint64, error) {
	path := fmt.Sprint("/proc/thread-self/fdinfo/", fd)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if id, is := bytes.CutPrefix(line, []byte("mnt_id:")); is {
			return strconv.ParseUint(string(bytes.TrimSpace(id)), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no mnt_id: %w", path, mount.ErrUnsupported)
}
