package fake

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// ExpandVolumeDevice implements [volume.ExpandableVolumePlugin].
func (p *Plugin) ExpandVolumeDevice(
	ctx context.Context, spec *volume.Spec, newSize, oldSize resource.Quantity,
) (resource.Quantity, error) {
	v, err := p.persistent(spec)
	if err != nil {
		return oldSize, err
	}
	grown := oldSize
	err = p.log.run(ctx, Call{Method: MethodExpandVolume, Volume: v.name}, func() error {
		if err := p.checkSize(newSize.Value()); err != nil {
			return fmt.Errorf("expanding volume %q: %w", v.name, err)
		}
		grown = *resource.NewQuantity(p.options.Backend.grow(v.handle, newSize.Value()), resource.BinarySI)
		return nil
	})
	return grown, err
}

// RequiresFSResize implements [volume.ExpandableVolumePlugin] and [volume.NodeExpandableVolumePlugin].
func (p *Plugin) RequiresFSResize() bool { return p.Capabilities().Has(volume.CapNodeExpand) }

// NodeExpand implements [volume.NodeExpandableVolumePlugin].
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	call := Call{Method: MethodNodeExpand, Volume: options.VolumeSpec.Name(), Path: options.DeviceMountPath}
	if host, err := p.host.get(); err == nil {
		call.Node = host.GetNodeName()
	}
	grown := false
	err := p.log.run(ctx, call, func() error {
		grown = true
		return nil
	})
	return grown && err == nil, err
}
