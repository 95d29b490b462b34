package loopblock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// leastSpace is what a growth may write into holes of an image beside a part of what it adds: its journal was never written to.
const leastSpace = 4 << 20

// checkSpaceBelow refuses to have the kernel grow an ext4 where the images' filesystem is as good as full. The kernel finds out
// too late that it cannot write, and then the filesystem is read-only, or worse, for the pods that have it.
func (f *filesystems) checkSpaceBelow(ctx context.Context, handle, device string) error {
	found, err := format.Probe(ctx, device)
	if err != nil || found.Type != "ext4" {
		return err
	}
	room, err := format.Measure(ctx, device)
	if err != nil || !room.IsWorthGrowing() {
		return err
	}
	space, err := withImage(ctx, f.devices.images, handle, image.SpaceOf)
	if err != nil {
		return err
	}
	if least := min(space.Holes, leastSpace+(room.Device-room.Filesystem)/1024); space.Free < least {
		return fmt.Errorf("the filesystem of the images has %d bytes left, and a growth may take %d: make room, and stage the volume again: %w: %w",
			space.Free, least, volume.ErrInUse, syscall.ENOSPC)
	}
	return nil
}

// growUnused makes a filesystem as large as its device, which is not mounted, where it is a good deal smaller and can
// grow without a mount: that is left to do when it could not while it was used. A volume whose filesystem cannot be made larger is
// used as it is, and its PersistentVolume gets an event: it grows when it is staged next.
func (f *filesystems) growUnused(ctx context.Context, src source, device loop.Device, fsType string) error {
	if fsType != "ext4" {
		return nil
	}
	room, err := format.Measure(ctx, device.Path)
	if err != nil || !room.IsWorthGrowing() {
		return err
	}
	grown, err := f.growTwice(ctx, src, device)
	switch {
	case errors.Is(err, format.ErrNoTool), errors.Is(err, mount.ErrUnsupported), errors.Is(err, format.ErrNotGrown):
		f.logger.Warn("the filesystem is mounted smaller than its device", "device", device.Path, "fstype", fsType, "err", err)
		f.tellNotGrown(src, device, err)
	case err != nil:
		return err
	}
	f.logExpansion(device.Path, grown, err)
	return nil
}

// growTwice tries once more what has failed and left the filesystem whole. The next chance may be far off, since pods have the
// volume until then, and one write that failed is no disk that is full.
func (f *filesystems) growTwice(ctx context.Context, src source, device loop.Device) (format.GrowResult, error) {
	grown, err := format.GrowKept(ctx, device.Path, keeper{filesystems: f, handle: src.handle})
	if !errors.Is(err, format.ErrNotGrown) {
		return grown, err
	}
	f.logger.Warn("the filesystem has not grown, and is tried once more", "device", device.Path, "err", err)
	return format.GrowKept(ctx, device.Path, keeper{filesystems: f, handle: src.handle})
}

// growStaged makes a filesystem that grows only while it is mounted as large as its device, as that of a copy that is larger
// than its source. The volume is usable as it is, so that a failure is logged and no error.
func (f *filesystems) growStaged(ctx context.Context, device, fsType, target string) {
	if fsType == "ext4" {
		return // it has grown before it was mounted
	}
	room, err := format.Measure(ctx, device)
	if err == nil && !room.IsWorthGrowing() {
		return
	}
	var grown format.GrowResult
	if err == nil {
		grown, err = format.Grow(ctx, device, format.GrowOptions{MountPath: target})
	}
	if err != nil {
		f.logger.Warn("the filesystem stays smaller than its device", "device", device, "fstype", fsType, "err", err)
	}
	f.logExpansion(device, grown, err)
}

func (f *filesystems) logExpansion(device string, grown format.GrowResult, err error) {
	if err == nil && grown.Grown() {
		f.logger.Info("the filesystem has grown", "device", device, "before", grown.Before, "after", grown.After)
	}
}

// keeper keeps with the image of a volume what its filesystem needs that was being checked or grown when the agent was killed.
type keeper struct {
	filesystems *filesystems
	handle      string
}

const attributePrefix = "user.volumekit."

// Keep implements format.Keeper. Without room a check goes on all the same, so that this is logged here.
func (k keeper) Keep(ctx context.Context, name string, data []byte) error {
	_, err := withImage(ctx, k.filesystems.devices.images, k.handle, func(file *os.File) (struct{}, error) {
		return struct{}{}, format.SetAttribute(file, attributePrefix+name, data)
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		k.filesystems.logger.Warn("there is no room for what a check or growth needs that is killed: make room below the images",
			"volume", k.handle, "what", name, "err", err)
	}
	return err
}

// Kept implements format.Keeper.
func (k keeper) Kept(ctx context.Context, name string) ([]byte, error) {
	return withImage(ctx, k.filesystems.devices.images, k.handle, func(file *os.File) ([]byte, error) {
		return format.Attribute(file, attributePrefix+name)
	})
}
