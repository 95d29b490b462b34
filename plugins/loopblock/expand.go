package loopblock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// RequiresFSResize implements volume.ExpandableVolumePlugin and volume.NodeExpandableVolumePlugin: what is in an image grows
// after the image.
func (p *Plugin) RequiresFSResize() bool { return true }

// ExpandVolumeDevice implements volume.ExpandableVolumePlugin. It makes the image larger, and its loop device, if it has one:
// a pod that has the device sees its new size at once. The space of an image whose space was all taken is taken here, too. An
// image that is larger already stays as it is. A size that no such volume can have is an error that matches
// volume.ErrInfeasible.
//
// A call that was broken off has made the image larger or not; nothing is in between, and the next call goes on.
func (p *Plugin) ExpandVolumeDevice(
	ctx context.Context, spec *volume.Spec, newSize, oldSize resource.Quantity,
) (resource.Quantity, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return oldSize, err
	}
	size, err := p.expand(ctx, src, newSize)
	if err != nil {
		return oldSize, fmt.Errorf("expanding volume %q: %w", src.handle, classify(err))
	}
	return *resource.NewQuantity(size, resource.BinarySI), nil
}

// expand returns the size that the image has in the end.
func (p *Plugin) expand(ctx context.Context, src source, newSize resource.Quantity) (int64, error) {
	wanted, err := imageSize(max(newSize.Value(), format.SizesOf(src.fsType).LeastGrown), src.fsType)
	if err != nil {
		return 0, err
	}
	return withImage(ctx, p, src.handle, func(file *os.File) (int64, error) {
		size, err := p.enlarge(src.handle, file, wanted)
		if err != nil {
			return 0, err
		}
		_, err = p.loops.ResizeFile(ctx, file)
		if errors.Is(err, loop.ErrNotAttached) {
			err = nil // It gets a device of this size.
		}
		return size, err
	})
}

// enlarge makes an image at least as large as size, so that it survives a power cut, and returns the size that it has.
func (p *Plugin) enlarge(handle string, file *os.File, size int64) (int64, error) {
	dir, err := image.OpenDir(p.baseDir)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	writable, err := dir.Open(handle+imageSuffix, os.O_RDWR)
	if err != nil {
		return 0, err
	}
	defer writable.Close()
	if same, err := dir.Is(handle+imageSuffix, file); err != nil || !same {
		return 0, errors.Join(err, fmt.Errorf("%q was replaced meanwhile: %w", file.Name(), volume.ErrTransient))
	}
	err = image.Extend(writable, size)
	if err == nil {
		err = writable.Sync() // also of one that was killed before
	}
	if err != nil {
		return 0, sized(file, size, err)
	}
	info, err := writable.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// NodeExpand implements volume.NodeExpandableVolumePlugin. It makes the loop device as large as the image, and the filesystem
// as large as the device, while it is mounted. An image that is smaller than NewSize, which is for ExpandVolumeDevice to
// mend, and a volume to which nobody may write are errors that match volume.ErrInfeasible. An ext4 that the kernel does not
// grow while it is mounted, for want of CAP_SYS_RESOURCE, or must not, for want of space below it, is one that matches
// volume.ErrInUse: it grows the next time that it is staged.
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	src, err := sourceOf(options.VolumeSpec)
	if err != nil {
		return false, err
	}
	if err := p.expandHere(ctx, src, options); err != nil {
		return false, fmt.Errorf("expanding volume %q on this node: %w", src.handle, classify(err))
	}
	return true, nil
}

func (p *Plugin) expandHere(ctx context.Context, src source, options volume.NodeResizeOptions) error {
	device, err := withImage(ctx, p, src.handle, func(file *os.File) (loop.Device, error) {
		if info, err := file.Stat(); err != nil || info.Size() < options.NewSize.Value() {
			return loop.Device{}, errors.Join(err, fmt.Errorf("image %q has less than %s, and only ExpandVolumeDevice makes it larger: %w",
				file.Name(), options.NewSize.String(), volume.ErrInfeasible))
		}
		return p.loops.ResizeFile(ctx, file)
	})
	switch {
	case err != nil || src.block:
		return err
	case src.readOnly:
		return fmt.Errorf("nothing is written to a read-only volume: %w", volume.ErrInfeasible)
	case options.DeviceStagePath != p.stagingPath(src.handle):
		return fmt.Errorf("the volume is staged at %q and not at %q: %w", p.stagingPath(src.handle), options.DeviceStagePath, volume.ErrInvalid)
	}
	if err := p.checkSpaceBelow(ctx, src.handle, device.Path); err != nil {
		return err
	}
	grown, err := format.Grow(ctx, device.Path, format.GrowOptions{MountPath: options.DeviceStagePath})
	if errors.Is(err, syscall.EPERM) {
		err = fmt.Errorf("%w: %w", err, volume.ErrInUse)
	}
	p.logGrowth(device.Path, grown, err)
	return err
}

// leastSpace is what a growth may write into holes of an image beside a part of what it adds: its journal was never written to.
const leastSpace = 4 << 20

// checkSpaceBelow refuses to have the kernel grow an ext4 where the images' filesystem is as good as full. The kernel finds out
// too late that it cannot write, and then the filesystem is read-only, or worse, for the pods that have it.
func (p *Plugin) checkSpaceBelow(ctx context.Context, handle, device string) error {
	found, err := format.Probe(ctx, device)
	if err != nil || found.Type != "ext4" {
		return err
	}
	room, err := format.Measure(ctx, device)
	if err != nil || !room.IsWorthGrowing() {
		return err
	}
	space, err := withImage(ctx, p, handle, image.SpaceOf)
	if err != nil {
		return err
	}
	if least := min(space.Holes, leastSpace+(room.Device-room.Filesystem)/1024); space.Free < least {
		return fmt.Errorf("the filesystem of the images has %d bytes left, and a growth may take %d: make room, and stage the volume again: %w: %w",
			space.Free, least, volume.ErrInUse, syscall.ENOSPC)
	}
	return nil
}

// growUnused makes a filesystem as large as its device, which nobody has mounted, where it is a good deal smaller and can
// grow without a mount: that is left to do when it could not while it was used. A volume whose filesystem cannot be made larger is
// used as it is, and its PersistentVolume is told: it grows when it is staged next.
func (p *Plugin) growUnused(ctx context.Context, src source, device loop.Device, fsType string) error {
	if fsType != "ext4" {
		return nil
	}
	room, err := format.Measure(ctx, device.Path)
	if err != nil || !room.IsWorthGrowing() {
		return err
	}
	grown, err := p.growTwice(ctx, src, device)
	switch {
	case errors.Is(err, format.ErrNoTool), errors.Is(err, mount.ErrUnsupported), errors.Is(err, format.ErrNotGrown):
		p.logger.Warn("the filesystem is mounted smaller than its device", "device", device.Path, "fstype", fsType, "err", err)
		p.tellNotGrown(src, device, err)
	case err != nil:
		return err
	}
	p.logGrowth(device.Path, grown, err)
	return nil
}

// growTwice tries once more what has failed and left the filesystem whole. The next chance may be far off, since pods have the
// volume until then, and one write that failed is no disk that is full.
func (p *Plugin) growTwice(ctx context.Context, src source, device loop.Device) (format.GrowResult, error) {
	grown, err := format.GrowKept(ctx, device.Path, keeper{plugin: p, handle: src.handle})
	if !errors.Is(err, format.ErrNotGrown) {
		return grown, err
	}
	p.logger.Warn("the filesystem has not grown, and is tried once more", "device", device.Path, "err", err)
	return format.GrowKept(ctx, device.Path, keeper{plugin: p, handle: src.handle})
}

// keeper keeps with the image of a volume what its filesystem needs that was being checked or grown when the agent was killed.
type keeper struct {
	plugin *Plugin
	handle string
}

const attributePrefix = "user.volumekit."

// Keep implements format.Keeper. Where there is no room a check goes on all the same, so that this is told here.
func (k keeper) Keep(ctx context.Context, name string, data []byte) error {
	_, err := withImage(ctx, k.plugin, k.handle, func(file *os.File) (struct{}, error) {
		return struct{}{}, format.SetAttribute(file, attributePrefix+name, data)
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		k.plugin.logger.Warn("there is no room for what a check or growth needs that is killed: make room below the images",
			"volume", k.handle, "what", name, "err", err)
	}
	return err
}

// Kept implements format.Keeper.
func (k keeper) Kept(ctx context.Context, name string) ([]byte, error) {
	return withImage(ctx, k.plugin, k.handle, func(file *os.File) ([]byte, error) {
		return format.Attribute(file, attributePrefix+name)
	})
}

// growStaged makes a filesystem that grows only while it is mounted as large as its device, as that of a copy that is larger
// than its source. The volume is usable as it is, so that a failure is told and no error.
func (p *Plugin) growStaged(ctx context.Context, device, fsType, target string) {
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
		p.logger.Warn("the filesystem stays smaller than its device", "device", device, "fstype", fsType, "err", err)
	}
	p.logGrowth(device, grown, err)
}

func (p *Plugin) logGrowth(device string, grown format.GrowResult, err error) {
	if err == nil && grown.Grown() {
		p.logger.Info("the filesystem has grown", "device", device, "before", grown.Before, "after", grown.After)
	}
}
