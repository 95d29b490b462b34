package loopblock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount/format"
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
	size, err := p.devices.expand(ctx, src, newSize)
	if err != nil {
		return oldSize, fmt.Errorf("expanding volume %q: %w", src.handle, classify(err))
	}
	return *resource.NewQuantity(size, resource.BinarySI), nil
}

// expand returns the size that the image has in the end.
func (v *devices) expand(ctx context.Context, src source, newSize resource.Quantity) (int64, error) {
	wanted, err := imageSize(max(newSize.Value(), format.SizesOf(src.fsType).LeastGrown), src.fsType)
	if err != nil {
		return 0, err
	}
	return withImage(ctx, v.images, src.handle, func(file *os.File) (int64, error) {
		size, err := v.images.enlarge(src.handle, file, wanted)
		if err != nil {
			return 0, err
		}
		_, err = v.loops.ResizeFile(ctx, file)
		if errors.Is(err, loop.ErrNotAttached) {
			err = nil // It gets a device of this size.
		}
		return size, err
	})
}

// NodeExpand implements volume.NodeExpandableVolumePlugin. It makes the loop device as large as the image, and the
// filesystem as large as the device, while it is mounted. If the image is smaller than NewSize, which ExpandVolumeDevice
// has to mend, or no pod may write to the volume, the error matches volume.ErrInfeasible. If the kernel does not expand an
// ext4 while it is mounted, without CAP_SYS_RESOURCE, or must not, because space is short below it, the error matches
// volume.ErrInUse. The filesystem is then expanded at the next staging.
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
	device, err := withImage(ctx, p.devices.images, src.handle, func(file *os.File) (loop.Device, error) {
		if info, err := file.Stat(); err != nil || info.Size() < options.NewSize.Value() {
			return loop.Device{}, errors.Join(err, fmt.Errorf("image %q has less than %s, and only ExpandVolumeDevice makes it larger: %w",
				file.Name(), options.NewSize.String(), volume.ErrInfeasible))
		}
		return p.devices.loops.ResizeFile(ctx, file)
	})
	switch {
	case err != nil || src.block:
		return err
	case src.readOnly:
		return fmt.Errorf("nothing is written to a read-only volume: %w", volume.ErrInfeasible)
	case options.DeviceStagePath != p.mounts.stagingPath(src.handle):
		return fmt.Errorf("the volume is staged at %q and not at %q: %w", p.mounts.stagingPath(src.handle), options.DeviceStagePath, volume.ErrInvalid)
	}
	if err := p.filesystems.checkSpaceBelow(ctx, src.handle, device.Path); err != nil {
		return err
	}
	grown, err := format.Grow(ctx, device.Path, format.GrowOptions{MountPath: options.DeviceStagePath})
	if errors.Is(err, syscall.EPERM) {
		err = fmt.Errorf("%w: %w", err, volume.ErrInUse)
	}
	p.filesystems.logExpansion(device.Path, grown, err)
	return err
}
