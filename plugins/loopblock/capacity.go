package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// GetCapacity implements volume.VolumePluginWithCapacity. The capacity is the free space of BaseDir's filesystem, less
// the holes of all images, which their volumes may still write. If images share blocks, a write to a shared block takes
// further space; that is unknown and not subtracted. A segment may name the node by v1.LabelHostname; for another node
// the capacity is zero. For any other key the error matches volume.ErrUnsupported.
func (p *Plugin) GetCapacity(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
	r := request{fsType: defaultFSType}
	for key, value := range options.Parameters {
		if err := r.parameter(key, value); err != nil {
			return volume.Capacity{}, fmt.Errorf("capacity: %w", err)
		}
	}
	here, err := p.isHere(options.Segment)
	if err != nil {
		return volume.Capacity{}, err
	}
	if !here {
		return capacityOf(0, r.fsType), nil
	}
	available, err := p.devices.images.available(ctx)
	if err != nil {
		return volume.Capacity{}, fmt.Errorf("capacity of images in %q: %w", p.devices.images.dir, err)
	}
	return capacityOf(available, r.fsType), nil
}

// isHere reports whether the segment contains this node.
func (p *Plugin) isHere(segment map[string]string) (bool, error) {
	for key, value := range segment {
		if key != v1.LabelHostname {
			return false, fmt.Errorf("capacity of a segment with %q: this plugin knows the topology key %q alone: %w",
				key, v1.LabelHostname, volume.ErrUnsupported)
		}
		if value != string(p.host.GetNodeName()) {
			return false, nil
		}
	}
	return true, nil
}

// capacityOf returns the capacity of a filesystem with this space, for volumes with fsType. Images have whole
// mebibytes. If the smallest image does not fit, the capacity is zero.
func capacityOf(available int64, fsType string) volume.Capacity {
	sizes := format.SizesOf(fsType)
	least := max(mebibyte, sizes.Least)
	available -= available % mebibyte
	if available < least {
		available = 0
	}
	quantity := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	return volume.Capacity{
		Available:         quantity(available),
		MaximumVolumeSize: quantity(min(available, sizes.Most-mebibyte)),
		MinimumVolumeSize: quantity(least),
	}
}

// available returns the bytes for new images: the free space, less what existing images may still take.
func (i images) available(ctx context.Context) (int64, error) {
	return mount.RunAbandonable(ctx, "measuring", i.dir, func() (int64, error) {
		free, err := freeAt(i.dir)
		if err != nil {
			return 0, err
		}
		holes, err := i.holes()
		return max(0, free-holes), err
	})
}

// freeAt returns the free bytes of the directory's filesystem; for a missing directory, of the one in which it would be
// made.
func freeAt(dir string) (int64, error) {
	file, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) && dir != "/" {
		return freeAt(filepath.Dir(dir))
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	space, err := image.SpaceOf(file)
	return space.Free, err
}

// holes returns the bytes of all images, also of incomplete ones, without allocated space.
func (i images) holes() (int64, error) {
	dir, err := image.OpenDir(i.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return 0, err
	}
	var all int64
	for _, name := range names {
		if !strings.HasSuffix(name, imageSuffix) && !strings.HasSuffix(name, partialSuffix) {
			continue
		}
		holes, err := holesOf(dir, name)
		if err != nil {
			return 0, err
		}
		all += holes
	}
	return all, nil
}

// holesOf returns the holes of one image: none if it was deleted meanwhile, or is no file.
func holesOf(dir *image.Dir, name string) (int64, error) {
	file, err := dir.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, image.ErrNotRegular) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	space, err := image.SpaceOf(file)
	return space.Holes, err
}
