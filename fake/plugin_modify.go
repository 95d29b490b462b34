package fake

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/volumekit/volumekit/volume"
)

// The attributes of a volume of a [Plugin] that ModifyVolume changes, by their keys. The storage keeps them, and they have no
// effect.
const (
	// ParameterIOPS is how many operations a second the volume is for: a number from 1 on.
	ParameterIOPS = "iops"
	// ParameterTier is the tier of the volume: any name but the empty one.
	ParameterTier = "tier"
)

// ModifyVolume implements [volume.ModifiableVolumePlugin]. The parameters are [ParameterIOPS] and [ParameterTier].
func (p *Plugin) ModifyVolume(ctx context.Context, spec *volume.Spec, parameters map[string]string) error {
	v, err := p.persistent(spec)
	if err != nil {
		return err
	}
	return p.log.run(ctx, Call{Method: MethodModifyVolume, Volume: v.name}, func() error {
		err := checkAttributes(parameters)
		if err == nil {
			err = p.options.Backend.modify(p.fenced(ctx), v.handle, parameters)
		}
		if err != nil {
			return fmt.Errorf("modifying volume %q: %w", v.name, err)
		}
		return nil
	})
}

// checkAttributes refuses what is no attribute, and values that none can have.
func checkAttributes(parameters map[string]string) error {
	for key, value := range parameters {
		switch key {
		case ParameterIOPS:
			if n, err := strconv.Atoi(value); err != nil || n < 1 {
				return fmt.Errorf("parameter %q is no number from 1 on: change it in the class: %w", key, volume.ErrInfeasible)
			}
		case ParameterTier:
			if value == "" {
				return fmt.Errorf("parameter %q is empty: give it a name in the class: %w", key, volume.ErrInfeasible)
			}
		default:
			return fmt.Errorf("parameter %q is not known: remove it from the class: %w", key, volume.ErrInfeasible)
		}
	}
	return nil
}

// Attributes returns the attributes that ModifyVolume or Provision gave a volume; a copy.
func (b *Backend) Attributes(handle string) map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.volumes[handle]; ok {
		return maps.Clone(v.attributes)
	}
	return nil
}

// modify gives a volume attributes, beside those that it has.
func (b *Backend) modify(ctx context.Context, handle string, attributes map[string]string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admit(ctx, handle); err != nil {
		return err
	}
	v := b.ensure(handle)
	if v.attributes == nil {
		v.attributes = map[string]string{}
	}
	maps.Copy(v.attributes, attributes)
	return nil
}
