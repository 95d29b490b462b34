package fake

import (
	"context"
	"fmt"
	"syscall"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// GetCapacity implements [volume.VolumePluginWithCapacity]. Available is PluginOptions.Capacity less the sizes of all volumes,
// the largest volume the less of that and MaxSize; each is unknown where its option is 0.
func (p *Plugin) GetCapacity(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
	capacity := volume.Capacity{MinimumVolumeSize: resource.NewQuantity(1, resource.BinarySI)}
	err := p.log.run(ctx, Call{Method: MethodGetCapacity}, func() error {
		if err := p.checkParameters(options.Parameters); err != nil {
			return err
		}
		left, limited := p.left()
		if limited {
			capacity.Available = resource.NewQuantity(left, resource.BinarySI)
			capacity.MaximumVolumeSize = resource.NewQuantity(left, resource.BinarySI)
		}
		if largest := p.options.MaxSize; largest > 0 && (!limited || largest < left) {
			capacity.MaximumVolumeSize = resource.NewQuantity(largest, resource.BinarySI)
		}
		return nil
	})
	if err != nil {
		return volume.Capacity{}, fmt.Errorf("plugin %q: capacity: %w", p.options.Name, err)
	}
	return capacity, nil
}

// checkParameters refuses what is no parameter of a class.
func (p *Plugin) checkParameters(parameters map[string]string) error {
	for key := range parameters {
		if key != volume.VolumeParameterFSType {
			return fmt.Errorf("parameter %q is not known: remove it from the class: %w", key, volume.ErrInvalid)
		}
	}
	return nil
}

// left returns how many bytes new volumes can have, and false when there is no limit.
func (p *Plugin) left() (left int64, limited bool) {
	if p.options.Capacity <= 0 {
		return 0, false
	}
	return max(0, p.options.Capacity-p.options.Backend.total()), true
}

// checkRoom refuses a new volume for which there is no room.
func (p *Plugin) checkRoom(handle string, size int64) error {
	left, limited := p.left()
	if !limited || size <= left || p.options.Backend.has(handle) {
		return nil
	}
	return fmt.Errorf("size of %d bytes: %d are left: delete a volume: %w", size, left, syscall.ENOSPC)
}

// total returns the sizes of all volumes together.
func (b *Backend) total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var total int64
	for _, v := range b.volumes {
		total += v.size
	}
	return total
}
