package volumetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func (p *plantedPlugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if len(options.Parameters) > 0 {
		return nil, fmt.Errorf("the class has parameters, and none is known: %w", volume.ErrInvalid)
	}
	claim := options.PVC.Spec
	if options.Source == nil && (claim.DataSource != nil || claim.DataSourceRef != nil) {
		return nil, fmt.Errorf("volume %q: nothing can be made of its data source: %w", options.PVName, volume.ErrInfeasible)
	}
	return &plantedProvisioner{p: p, options: options}, volume.CheckPathElement(options.PVName)
}

func (p *plantedPlugin) CanClone(source *volume.Spec) (bool, error) {
	_, err := p.GetVolumeName(source)
	return err == nil, err
}

type plantedProvisioner struct {
	p       *plantedPlugin
	options volume.VolumeOptions
}

func (r *plantedProvisioner) Provision(ctx context.Context, _ *v1.Node, _ []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name := r.options.PVName
	if r.p.has("the disk is named by its claim alone") {
		name = r.options.PVC.Name
	}
	size := r.options.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	isBlock := modeOf(r.options.PVC.Spec.VolumeMode) == v1.PersistentVolumeBlock
	made := size.Value()
	if r.p.has("the filesystem is smaller than what is promised") {
		made /= 2
	}
	isNew := r.p.storage.exists(name) != nil
	if err := r.p.storage.create(name, made, isBlock); err != nil {
		return nil, err
	}
	if !isNew && (r.p.has("Provision again empties the disk") || r.p.has("Provision again empties the device")) {
		if err := r.p.storage.wipe(ctx, name); err != nil {
			return nil, err
		}
	}
	if isNew && r.options.Source != nil {
		if err := r.p.copy(r.options.Source.Spec.CSI.VolumeHandle, name); err != nil {
			return nil, err
		}
	}
	return r.persistentVolume(name, size), nil
}

// copy copies the files of a disk.
func (p *plantedPlugin) copy(from, to string) error {
	world := p.storage.world
	entries, err := world.ReadDir(diskPath(from))
	for _, entry := range entries {
		data, readErr := world.ReadFile(diskPath(from) + "/" + entry.Name())
		err = errors.Join(err, readErr)
		if p.has("a clone has names without content") {
			data = nil
		}
		err = errors.Join(err, world.WriteFile(diskPath(to)+"/"+entry.Name(), data, 0o644))
	}
	return err
}

func (r *plantedProvisioner) persistentVolume(name string, size resource.Quantity) *v1.PersistentVolume {
	claim := r.options.PVC.Spec
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: r.options.PVName},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   slices.Clone(claim.AccessModes),
			Capacity:                      v1.ResourceList{v1.ResourceStorage: size},
			MountOptions:                  slices.Clone(r.options.MountOptions),
			PersistentVolumeReclaimPolicy: r.options.PersistentVolumeReclaimPolicy,
			VolumeMode:                    claim.VolumeMode,
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: plantedDriver, VolumeHandle: name},
			},
		},
	}
	if r.p.has("the reclaim policy is always Delete") {
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	}
	if r.p.has("the class's mount options are dropped") {
		pv.Spec.MountOptions = nil
	}
	if r.p.has("every disk may be used by many nodes") {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}
	}
	if r.p.has("a claim of a device gets a filesystem") {
		pv.Spec.VolumeMode = nil
	}
	return pv
}

func (p *plantedPlugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	disk, err := p.GetVolumeName(spec)
	return &plantedDeleter{plantedVolume: plantedVolume{p: p, name: spec.Name(), disk: disk}}, err
}

type plantedDeleter struct{ plantedVolume }

func (d *plantedDeleter) Delete(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.checkUnused(ctx); err != nil {
		return err
	}
	names := []string{d.disk}
	if d.p.has("Delete takes every disk whose name begins like this") {
		names = d.p.storage.names(d.disk)
	}
	if d.p.has("Delete empties the whole storage") {
		names = d.p.storage.names("")
	}
	for _, name := range names {
		if err := d.p.storage.remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (d *plantedDeleter) checkUnused(ctx context.Context) error {
	s := d.p.storage
	if d.p.has("Delete does not look whether the disk is mounted") || d.p.has("Delete does not look whether the device is mapped") {
		return nil
	}
	err := s.use(d.disk, func(disk *plantedDisk) error {
		if len(disk.nodes) > 0 && (d.p.seen[d.disk] || !d.p.has("Delete knows only what this process has attached")) {
			return fmt.Errorf("disk %q is attached: %w", d.disk, volume.ErrInUse)
		}
		return nil
	})
	if errors.Is(err, volume.ErrInUse) {
		if !d.p.has("Delete detaches first") {
			return err
		}
		return nil
	}
	if d.p.has("Delete knows only what this process has attached") {
		return nil
	}
	return s.checkUnused(ctx, d.disk)
}

func (p *plantedPlugin) RequiresFSResize() bool { return p.Capabilities().Has(volume.CapNodeExpand) }

func (p *plantedPlugin) ExpandVolumeDevice(ctx context.Context, spec *volume.Spec, want, _ resource.Quantity) (resource.Quantity, error) {
	name, err := p.GetVolumeName(spec)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return resource.Quantity{}, err
	}
	isUsed := p.storage.use(name, func(d *plantedDisk) error {
		if len(d.nodes) > 0 {
			return volume.ErrInUse
		}
		return nil
	}) != nil
	if !isUsed && (p.has("an expansion makes a new disk where none is attached") || p.has("an expansion makes the device anew")) {
		if err := p.storage.wipe(ctx, name); err != nil {
			return resource.Quantity{}, err
		}
	}
	size := want.Value()
	err = p.storage.use(name, func(d *plantedDisk) error {
		if p.has("an expansion to less shrinks the disk and says it did not") && size < d.size {
			d.size, d.filesystem, size = size, min(d.filesystem, size), d.size
			return nil
		}
		d.size = max(d.size, size)
		size = d.size
		return nil
	})
	return *resource.NewQuantity(size, resource.BinarySI), err
}

func (p *plantedPlugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	name, err := p.GetVolumeName(options.VolumeSpec)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, err
	}
	if p.has("NodeExpand makes the filesystem anew") {
		if err := p.storage.wipe(ctx, name); err != nil {
			return false, err
		}
	}
	err = p.storage.use(name, func(d *plantedDisk) error {
		if p.has("what NodeExpand has grown is small again after a remount") && d.remounted == 0 {
			d.remounted = d.filesystem
		}
		d.filesystem = max(d.filesystem, min(d.size, options.NewSize.Value()))
		return nil
	})
	return err == nil, err
}
