package volumetest

import (
	"context"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

func (m *mutant) GetCapacity(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
	if m.room != nil {
		return m.room(ctx, options)
	}
	return m.Plugin.GetCapacity(ctx, options)
}

// capacityDefects are the mutants of the rules about capacity.
func capacityDefects() map[string]func(m *mutant) {
	return map[string]func(m *mutant){
		"F1": func(m *mutant) {
			m.room = func(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
				capacity, err := m.Plugin.GetCapacity(ctx, options)
				capacity.Available = resource.NewQuantity(-1, resource.BinarySI)
				return capacity, err
			}
		},
		"F2": func(m *mutant) {
			m.room = func(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
				options.Parameters = nil
				return m.Plugin.GetCapacity(ctx, options)
			}
		},
		"F3": func(m *mutant) {
			// What a filesystem says of sparse files: nothing was written, so nothing is taken.
			m.room = func(ctx context.Context, options volume.CapacityOptions) (volume.Capacity, error) {
				capacity, err := m.Plugin.GetCapacity(ctx, options)
				capacity.Available = resource.NewQuantity(fakeCapacity, resource.BinarySI)
				return capacity, err
			}
		},
	}
}
