package local

import (
	"fmt"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
)

// numberOf returns the number of a device.
func numberOf(info fs.FileInfo) (major, minor uint32, err error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fmt.Errorf("the number of device %s is not known: %w", info.Name(), volume.ErrUnsupported)
	}
	return unix.Major(stat.Rdev), unix.Minor(stat.Rdev), nil
}

// groupOf returns the group of a file.
func groupOf(info fs.FileInfo) (int64, error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("the group of %s is not known: %w", info.Name(), volume.ErrUnsupported)
	}
	return int64(stat.Gid), nil
}
