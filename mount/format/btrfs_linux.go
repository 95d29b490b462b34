package format

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// btrfsInfo is struct btrfs_ioctl_fs_info_args, of which only the first members matter.
type btrfsInfo struct {
	maxID uint64
	_     [1016]byte
}

// btrfsDevice is struct btrfs_ioctl_dev_info_args.
type btrfsDevice struct {
	id   uint64
	_    [24]byte // uuid, bytes_used
	size uint64
	_    [3032]byte
	path [1024]byte
}

// btrfsVolume is struct btrfs_ioctl_vol_args.
type btrfsVolume struct {
	_    int64
	name [4088]byte
}

// btrfsDeviceOf finds the device with the number rdev among those of a mounted btrfs, whose own number says nothing.
func btrfsDeviceOf(m mounted, rdev uint64) (btrfsDevice, error) {
	var info btrfsInfo
	if err := ioctl(m, btrfsFSInfo, &info); err != nil {
		return btrfsDevice{}, fmt.Errorf("BTRFS_IOC_FS_INFO: %w", err)
	}
	for id := range info.maxID + 1 {
		device := btrfsDevice{id: id}
		err := ioctl(m, btrfsDeviceInfo, &device)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return btrfsDevice{}, fmt.Errorf("BTRFS_IOC_DEV_INFO of %d: %w", id, err)
		}
		var st unix.Stat_t
		path, _, _ := bytes.Cut(device.path[:], []byte{0})
		if err := unix.Stat(string(path), &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == rdev {
			return device, nil
		}
	}
	return btrfsDevice{}, fmt.Errorf("the btrfs at %q is not on this device: %w", m.path, mount.ErrForeign)
}

func (g expansion) growBtrfs(ctx context.Context, m mounted, rdev uint64) (GrowResult, error) {
	if err := m.isOf(unix.BTRFS_SUPER_MAGIC, 0); err != nil {
		return GrowResult{}, err
	}
	device, err := btrfsDeviceOf(m, rdev)
	if err != nil {
		return GrowResult{}, err
	}
	g.geometry = btrfsGeometry(g.block, int64(device.size)) // which is newer than the superblock on the device
	if done, err := g.isDone(); done || err != nil {
		return g.result(g.geometry), err
	}
	if err := abandonable.Begin(ctx, "BTRFS_IOC_RESIZE"); err != nil {
		return GrowResult{}, err
	}
	var request btrfsVolume
	copy(request.name[:], fmt.Sprintf("%d:max", device.id))
	err = ioctl(m, btrfsResize, &request)
	if errors.Is(err, unix.EINVAL) && g.deviceSize < btrfsLeast {
		err = fmt.Errorf("the kernel resizes none to less than %d bytes: make the device larger: %w: %w", btrfsLeast, mount.ErrUnsupported, err)
	}
	if err != nil {
		return GrowResult{}, fmt.Errorf("BTRFS_IOC_RESIZE of device %d: %w", device.id, err)
	}
	after := btrfsDevice{id: device.id}
	if err := ioctl(m, btrfsDeviceInfo, &after); err != nil {
		return GrowResult{}, fmt.Errorf("BTRFS_IOC_DEV_INFO of %d: %w", device.id, err)
	}
	return g.verified(btrfsGeometry(g.block, int64(after.size)))
}
