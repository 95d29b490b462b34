package fake

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// NewProvisioner implements [volume.ProvisionableVolumePlugin]. The only class parameter is volume.VolumeParameterFSType. The mutable
// parameters are those of ModifyVolume.
func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if options.PVC == nil {
		return nil, fmt.Errorf("plugin %q: volume %q: the claim is nil: %w", p.options.Name, options.PVName, volume.ErrInvalid)
	}
	if err := checkNames(options.PVName); err != nil {
		return nil, fmt.Errorf("plugin %q: PVName: %w", p.options.Name, err)
	}
	if err := p.checkSource(options); err != nil {
		return nil, err
	}
	if err := p.checkParameters(options.Parameters); err != nil {
		return nil, fmt.Errorf("plugin %q: %w", p.options.Name, err)
	}
	if err := checkAttributes(options.MutableParameters); err != nil {
		return nil, fmt.Errorf("plugin %q: volume %q: %w", p.options.Name, options.PVName, err)
	}
	return &provisioner{plugin: p, options: options}, nil
}

// NewDeleter implements [volume.DeletableVolumePlugin].
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	v, err := p.persistent(spec)
	if err != nil {
		return nil, err
	}
	path, err := p.stagePath(v.handle)
	if err != nil {
		return nil, err
	}
	return &deleter{podVolume{plugin: p, name: v.name, handle: v.handle, path: path}}, nil
}

// persistent reads a spec whose PersistentVolume must be set.
func (p *Plugin) persistent(spec *volume.Spec) (volumeInfo, error) {
	v, err := p.volumeOf(spec)
	if err == nil && (spec.PersistentVolume == nil || v.handle == "") {
		err = fmt.Errorf("plugin %q: volume %q is no PersistentVolume with a handle: %w",
			p.options.Name, v.name, volume.ErrInvalid)
	}
	return v, err
}

// Recycle implements [volume.RecyclableVolumePlugin]. It refuses an attached volume. It deletes nothing: on a tmpfs, the default, the
// content of a volume is gone after its last unmount.
func (p *Plugin) Recycle(ctx context.Context, pvName string, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	v, err := p.persistent(spec)
	if err != nil {
		return err
	}
	return p.log.run(ctx, Call{Method: MethodRecycle, Volume: pvName}, func() error {
		if nodes := p.options.Backend.Nodes(v.handle); len(nodes) > 0 {
			return fmt.Errorf("volume %q is attached to %v: detach it first: %w", pvName, nodes, volume.ErrInUse)
		}
		recorder(v1.EventTypeNormal, "recycled volume "+pvName)
		return nil
	})
}

// provisioner implements volume.Provisioner.
type provisioner struct {
	plugin  *Plugin
	options volume.VolumeOptions
}

func (p *provisioner) Provision(
	ctx context.Context, _ *v1.Node, _ []v1.TopologySelectorTerm,
) (*v1.PersistentVolume, error) {
	size := p.options.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	err := p.plugin.log.run(ctx, Call{Method: MethodProvision, Volume: p.options.PVName}, func() error {
		if err := p.plugin.checkSize(size.Value()); err != nil {
			return err
		}
		if err := p.plugin.checkRoom(p.options.PVName, size.Value()); err != nil {
			return err
		}
		if err := p.make(ctx, &size); err != nil {
			return err
		}
		return p.plugin.options.Backend.modify(p.plugin.fenced(ctx), p.options.PVName, p.options.MutableParameters)
	})
	if err != nil {
		return nil, fmt.Errorf("provisioning volume %q: %w", p.options.PVName, err)
	}
	return p.persistentVolume(size), nil
}

// make creates the volume unless it exists. Its size is at least that of its source.
func (p *provisioner) make(ctx context.Context, size *resource.Quantity) error {
	if p.options.Snapshot != nil {
		return p.plugin.options.Backend.restore(p.options.PVName, size.Value(), p.options.Snapshot.Handle)
	}
	source := p.options.Source
	if source == nil && namesSource(p.options.PVC) {
		return p.plugin.options.Backend.findCopy(p.options.PVName, size)
	}
	if source == nil {
		return p.plugin.options.Backend.Create(p.options.PVName, size.Value())
	}
	if least := source.Spec.Capacity[v1.ResourceStorage]; size.Cmp(least) < 0 {
		*size = least
	}
	content, err := p.plugin.contentFor(ctx, source)
	if err != nil {
		return err
	}
	p.plugin.options.Backend.createWith(p.options.PVName, size.Value(), content)
	return nil
}

func (p *provisioner) persistentVolume(size resource.Quantity) *v1.PersistentVolume {
	claim := p.options.PVC.Spec
	mode := v1.PersistentVolumeFilesystem
	if claim.VolumeMode != nil {
		mode = *claim.VolumeMode
	}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: p.options.PVName},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   slices.Clone(claim.AccessModes),
			Capacity:                      v1.ResourceList{v1.ResourceStorage: size},
			MountOptions:                  slices.Clone(p.options.MountOptions),
			PersistentVolumeReclaimPolicy: p.options.PersistentVolumeReclaimPolicy,
			VolumeMode:                    &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver:       volume.DriverOfPluginName(p.plugin.options.Name),
				VolumeHandle: p.options.PVName,
				FSType:       p.options.Parameters[volume.VolumeParameterFSType],
			}},
		},
	}
}

// checkSize refuses a size that is larger than MaxSize, or not positive.
func (p *Plugin) checkSize(size int64) error {
	switch {
	case size <= 0:
		return fmt.Errorf("size of %d bytes: ask for more than none: %w", size, volume.ErrInfeasible)
	case p.options.MaxSize > 0 && size > p.options.MaxSize:
		return fmt.Errorf("size of %d bytes: the largest volume has %d: %w", size, p.options.MaxSize, volume.ErrInfeasible)
	}
	return nil
}

// deleter implements volume.Deleter.
type deleter struct{ podVolume }

var _ volume.Deleter = (*deleter)(nil)

func (d *deleter) Delete(ctx context.Context) error {
	return d.plugin.log.run(ctx, d.call(MethodDelete), func() error {
		return d.plugin.options.Backend.remove(d.handle)
	})
}
