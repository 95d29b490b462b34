package local

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/volume"
)

// RequiresFSResize implements [volume.NodeExpandableVolumePlugin].
func (p *Plugin) RequiresFSResize() bool { return true }

// NodeExpand implements [volume.NodeExpandableVolumePlugin]. It makes a disk's filesystem as large as the disk, which an
// operator has made larger before. A directory has no size of its own, and so has every one.
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	src, err := sourceOf(options.VolumeSpec)
	if err != nil {
		return false, err
	}
	found, err := p.find(ctx, src)
	if err != nil || !found.isDevice {
		return err == nil, err
	}
	if err := p.expand(ctx, src, found.path, options); err != nil {
		return false, fmt.Errorf("expanding local volume %q: %w", src.name, err)
	}
	return true, nil
}

func (p *Plugin) expand(ctx context.Context, src source, disk string, options volume.NodeResizeOptions) error {
	size, err := volume.NewMetricsBlock(disk).GetMetrics(ctx)
	if err != nil {
		return err
	}
	if size.Capacity.Cmp(options.NewSize) < 0 {
		return fmt.Errorf("%s has %s, and %s is asked for: make the disk larger, or the volume smaller: %w",
			disk, size.Capacity.String(), options.NewSize.String(), volume.ErrInfeasible)
	}
	filesystem, err := volume.CheckVolumeModeFilesystem(options.VolumeSpec)
	if err != nil || !filesystem {
		return err
	}
	grown, err := format.Grow(ctx, disk, format.GrowOptions{MountPath: options.DeviceStagePath})
	if err == nil && grown.Grown() {
		p.logger.Info("the filesystem has grown", "volume", src.name, "device", disk, "before", grown.Before, "after", grown.After)
	}
	return err
}
