package fake

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
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
		size, err := p.options.Backend.grow(p.fenced(ctx), v.handle, newSize.Value())
		if err != nil {
			return fmt.Errorf("expanding volume %q: %w", v.name, err)
		}
		grown = *resource.NewQuantity(size, resource.BinarySI)
		return nil
	})
	return grown, err
}

// RequiresFSResize implements [volume.ExpandableVolumePlugin] and [volume.NodeExpandableVolumePlugin].
func (p *Plugin) RequiresFSResize() bool { return p.Capabilities().Has(volume.CapNodeExpand) }

// NodeExpand implements [volume.NodeExpandableVolumePlugin]. A size that is larger than the volume in the backend is an error. To
// fake a plugin that cannot expand a volume in use, or never, call [Plugin.Inject] with an error that matches volume.ErrInUse or
// volume.ErrInfeasible. To fake one that reports success without an effect, inject [SkipWork].
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	v, err := p.persistent(options.VolumeSpec)
	if err != nil {
		return false, err
	}
	call := Call{Method: MethodNodeExpand, Volume: v.name, Path: options.DeviceMountPath}
	if host, err := p.host.get(); err == nil {
		call.Node = host.GetNodeName()
	}
	grown := false
	err = p.log.run(ctx, call, func() error {
		if err := p.options.Backend.growOn(v.handle, call.Node, options.NewSize.Value()); err != nil {
			return err
		}
		if err := p.growMounted(ctx, v, cmp.Or(options.DeviceStagePath, options.DeviceMountPath)); err != nil {
			return fmt.Errorf("growing volume %q: %w", v.name, err)
		}
		grown = true
		return nil
	})
	return grown && err == nil, err
}

// growMounted sets the size of the filesystem that is mounted at path to the size of the volume.
func (p *Plugin) growMounted(ctx context.Context, v volumeInfo, path string) error {
	size := p.sizeOption(v)
	if len(size) == 0 || path == "" {
		return nil
	}
	mounted, err := p.mounted(ctx, path)
	if err != nil || !mounted {
		return err
	}
	return p.options.Mounter.Mount(ctx, mount.Request{Target: path, Options: append([]string{"remount"}, size...)})
}
