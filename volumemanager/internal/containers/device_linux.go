package containers

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/blockmap"
)

// DeviceNumber returns the number of the block device whose node is at path. It does no I/O on the device.
func DeviceNumber(path string) (major, minor uint32, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, fmt.Errorf("stat of the device at %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, 0, fmt.Errorf("what is at %q: %w", path, blockmap.ErrNotDevice)
	}
	return unix.Major(st.Rdev), unix.Minor(st.Rdev), nil
}
