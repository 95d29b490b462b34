package format

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// The requests by which filesystems grow, as amd64, arm64 and most others encode them, from fs/ext4/ext4.h,
// fs/xfs/libxfs/xfs_fs.h and include/uapi/linux/btrfs.h.
const (
	ext4ResizeFS    = 0x40086610
	xfsGeometryV1   = 0x80705864
	xfsGrowData     = 0x4010586e
	btrfsResize     = 0x50009403
	btrfsDeviceInfo = 0xd000941e
	btrfsFSInfo     = 0x8400941f
)

// mounted is the root of a mounted filesystem, open.
type mounted struct {
	fd   int
	path string
}

// online grows what is mounted at path.
func (g expansion) online(ctx context.Context, path string) (GrowResult, error) {
	if err := abandonable.Begin(ctx, "open of the mount"); err != nil {
		return GrowResult{}, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return GrowResult{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	m := mounted{fd: fd, path: path}
	device, err := fstat(g.file)
	if err != nil {
		return GrowResult{}, fmt.Errorf("fstat of %q: %w", g.file.Name(), err)
	}
	if device.Mode&unix.S_IFMT != unix.S_IFBLK {
		return GrowResult{}, fmt.Errorf("%q is no device, so that it is not mounted at %q: %w", g.file.Name(), path, mount.ErrForeign)
	}
	switch g.fsType {
	case "xfs":
		return g.growXFS(ctx, m, device.Rdev)
	case "btrfs":
		return g.growBtrfs(ctx, m, device.Rdev)
	}
	return g.growExt(ctx, m, device.Rdev)
}

// isOf makes sure that the mount is of the very device: its filesystem has the magic number, and the device's number.
func (m mounted) isOf(magic int64, rdev uint64) error {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(m.fd, &fs), unix.Fstat(m.fd, &st)); err != nil {
		return fmt.Errorf("cannot look at %q: %w", m.path, err)
	}
	if int64(fs.Type) != magic || (rdev != 0 && st.Dev != rdev) { //nolint:unconvert // narrower elsewhere
		return fmt.Errorf("what is mounted at %q is not on this device: %w", m.path, mount.ErrForeign)
	}
	return nil
}

// ioctl gives the kernel a pointer to arg.
func ioctl[T any](m mounted, request uint, arg *T) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.fd), uintptr(request), uintptr(unsafe.Pointer(arg)))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

func (g expansion) growExt(ctx context.Context, m mounted, rdev uint64) (GrowResult, error) {
	if err := m.isOf(unix.EXT4_SUPER_MAGIC, rdev); err != nil {
		return GrowResult{}, err
	}
	if done, err := g.isDone(); done || err != nil {
		return g.result(g.geometry), err
	}
	if err := abandonable.Begin(ctx, "EXT4_IOC_RESIZE_FS"); err != nil {
		return GrowResult{}, err
	}
	blocks := uint64(g.deviceSize / g.block)
	err := ioctl(m, ext4ResizeFS, &blocks)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("it takes CAP_SYS_RESOURCE and a filesystem without errors: check and grow it while it is not mounted: %w", err)
	}
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("this kernel grows it only while it is not mounted: %w: %w", mount.ErrUnsupported, err)
	}
	if err != nil {
		return GrowResult{}, fmt.Errorf("EXT4_IOC_RESIZE_FS to %d blocks: %w", blocks, err)
	}
	// The kernel keeps the superblock in the cache of the device, so that what is read there is what it has.
	after, err := geometryOf(g.file, g.fsType)
	if err != nil {
		return GrowResult{}, err
	}
	return g.verified(after)
}

// xfsGeom is struct xfs_fsop_geom_v1, of which only the first members matter.
type xfsGeom struct {
	blockSize  uint32
	_          [24]byte
	imaxPct    uint32
	dataBlocks uint64
	_          [72]byte
}

// xfsGrow is struct xfs_growfs_data.
type xfsGrow struct {
	newBlocks uint64
	imaxPct   uint32
	_         uint32
}

func (m mounted) xfs() (geometry, xfsGeom, error) {
	var geom xfsGeom
	if err := ioctl(m, xfsGeometryV1, &geom); err != nil {
		return geometry{}, geom, fmt.Errorf("XFS_IOC_FSGEOMETRY: %w", err)
	}
	return xfsGeometry(int64(geom.blockSize), int64(geom.dataBlocks)), geom, nil
}

func (g expansion) growXFS(ctx context.Context, m mounted, rdev uint64) (GrowResult, error) {
	if err := m.isOf(unix.XFS_SUPER_MAGIC, rdev); err != nil {
		return GrowResult{}, err
	}
	now, geom, err := m.xfs() // which is newer than the superblock on the device
	if err != nil {
		return GrowResult{}, err
	}
	g.geometry = now
	if done, err := g.isDone(); done || err != nil {
		return g.result(now), err
	}
	if err := abandonable.Begin(ctx, "XFS_IOC_FSGROWFSDATA"); err != nil {
		return GrowResult{}, err
	}
	request := xfsGrow{newBlocks: uint64(g.deviceSize / g.block), imaxPct: geom.imaxPct}
	err = ioctl(m, xfsGrowData, &request)
	if errors.Is(err, unix.EINVAL) && g.reaches(g.deviceSize) {
		return g.result(now), nil // what is left is too little for an allocation group
	}
	if err != nil {
		return GrowResult{}, fmt.Errorf("XFS_IOC_FSGROWFSDATA to %d blocks: %w", request.newBlocks, err)
	}
	after, _, err := m.xfs()
	if err != nil {
		return GrowResult{}, err
	}
	return g.verified(after)
}
