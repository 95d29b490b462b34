package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// disks is loop-block on a directory that many nodes share. What loop-block does on its one node is divided: to attach is to
// give the image to a node, which the controller writes into etcd, as a disk array would keep it by itself; the node makes the loop device when it waits for the attachment, and
// takes that off with the staging directory.
//
// Each node in the segment of the disks can have each volume, up to volumesPerNode; other nodes can have none.
//
// Everything else, from making an image to its filesystem, is loop-block's.
type disks struct {
	*loopblock.Plugin
	node    types.NodeName // of the process; no node's in a controller
	holders *etcd.Store
}

var _ volume.AttachableVolumePlugin = (*disks)(nil)

// newDisks returns the plugin of a process. mounter is nil in a controller, which mounts nothing.
func newDisks(shared string, node types.NodeName, holders *etcd.Store, mounter mount.Interface) *disks {
	return &disks{
		Plugin: loopblock.New(loopblock.Options{BaseDir: filepath.Join(shared, "images"), Mounter: mounter}),
		node:   node, holders: holders,
	}
}

const (
	// segmentLabel is the label of a node that names its topology segment: which disks it can reach.
	segmentLabel = "cluster.volumekit.io/segment"
	// diskSegment is where the disks are.
	diskSegment = "disks"
	// volumesPerNode is how many volumes a node can have.
	volumesPerNode = 3
)

// GetVolumeLimits implements volume.VolumePluginWithAttachLimits. The nodes' loop devices are those of one machine: that of
// loop-block would count those of all nodes.
func (d *disks) GetVolumeLimits(context.Context) (map[string]int64, error) { //nolint:unparam // an interface has it
	return map[string]int64{d.VolumeLimitKey(nil): volumesPerNode}, nil
}

// GetCapacity implements volume.VolumePluginWithCapacity: the segment has one directory for all images.
func (d *disks) GetCapacity(ctx context.Context, o volume.CapacityOptions) (volume.Capacity, error) {
	o.Segment = nil
	return d.Plugin.GetCapacity(ctx, o)
}

// NewProvisioner implements volume.ProvisionableVolumePlugin.
func (d *disks) NewProvisioner(o volume.VolumeOptions) (volume.Provisioner, error) {
	local, err := d.Plugin.NewProvisioner(o)
	return provisioner{local}, err
}

// provisioner makes volumes for the whole segment, whichever node was selected.
type provisioner struct{ volume.Provisioner }

// Provision implements volume.Provisioner.
func (p provisioner) Provision(ctx context.Context, _ *v1.Node, _ []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	pv, err := p.Provisioner.Provision(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: segmentLabel, Operator: v1.NodeSelectorOpIn, Values: []string{diskSegment}}},
	}}}}
	return pv, nil
}

// NewDeleter implements volume.DeletableVolumePlugin. The node affinity is left out: each process reaches the images of the segment,
// and loop-block knows one node.
func (d *disks) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	if spec.PersistentVolume == nil {
		return d.Plugin.NewDeleter(spec)
	}
	pv := spec.PersistentVolume.DeepCopy()
	pv.Spec.NodeAffinity = nil
	return d.Plugin.NewDeleter(volume.NewSpecFromPersistentVolume(pv, spec.ReadOnly))
}

// NewAttacher implements volume.AttachableVolumePlugin.
func (d *disks) NewAttacher() (volume.Attacher, error) {
	local, err := d.Plugin.NewAttacher()
	return attacher{local, d}, err
}

// NewDetacher implements volume.AttachableVolumePlugin.
func (d *disks) NewDetacher() (volume.Detacher, error) {
	local, err := d.Plugin.NewDetacher()
	return detacher{local, d}, err
}

// NewDeviceUnmounter implements volume.DeviceMountableVolumePlugin.
func (d *disks) NewDeviceUnmounter() (volume.DeviceUnmounter, error) {
	local, err := d.Plugin.NewDetacher()
	return detacher{local, d}, err
}

// NewBlockVolumeMapper refuses devices without a filesystem: the executor unmaps them, and nothing would take their loop device off.
func (*disks) NewBlockVolumeMapper(*volume.Spec, *v1.Pod) (volume.BlockVolumeMapper, error) { //nolint:unparam // It is that of an interface.
	return nil, fmt.Errorf("raw block volumes are not shared here: ask for a filesystem: %w", volume.ErrUnsupported)
}

// attacher stages as loop-block does.
type attacher struct {
	volume.Attacher
	disks *disks
}

// Attach runs in the controller. etcd checks that the node is alive, and that no other node has the image, in the
// transaction that gives it the image.
func (a attacher) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	name, err := a.disks.GetVolumeName(spec)
	if err != nil {
		return "", err
	}
	err = a.disks.holders.Hold(ctx, name, node, nodeLeaseName(node))
	if held, ok := errors.AsType[*etcd.HeldError](err); ok {
		return "", &volume.DanglingAttachError{CurrentNode: held.Node, Err: err}
	}
	return "", err // Only the node knows its devices.
}

// VolumesAreAttached runs in the controller.
func (a attacher) VolumesAreAttached(
	ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, node types.NodeName,
) (map[v1.UniqueVolumeName]bool, error) {
	answer := make(map[v1.UniqueVolumeName]bool, len(specs))
	for unique, spec := range specs {
		name, err := a.disks.GetVolumeName(spec)
		if err != nil {
			continue // It stays unknown.
		}
		holder, err := a.disks.holders.Holder(ctx, name)
		if err != nil {
			return nil, err
		}
		answer[unique] = holder == node
	}
	return answer, nil
}

// WaitForAttach runs on the node.
func (a attacher) WaitForAttach(ctx context.Context, spec *volume.Spec, _ string, _ *v1.Pod) (string, error) {
	name, err := a.disks.GetVolumeName(spec)
	if err != nil {
		return "", err
	}
	holder, err := a.disks.holders.Holder(ctx, name)
	if err == nil && holder != a.disks.node {
		err = fmt.Errorf("volume %q was given to %q and not to this node: %w", name, holder, volume.ErrTransient)
	}
	if err != nil {
		return "", err
	}
	return a.Attacher.Attach(ctx, spec, a.disks.node)
}

// detacher unstages as loop-block does.
type detacher struct {
	volume.Detacher
	disks *disks
}

// Detach runs in the controller.
func (d detacher) Detach(ctx context.Context, name string, node types.NodeName) error {
	return d.disks.holders.Release(ctx, name, node)
}

// UnmountDevice runs on the node. The name of a staging directory is that of its volume.
func (d detacher) UnmountDevice(ctx context.Context, path string) error {
	if err := d.Detacher.UnmountDevice(ctx, path); err != nil {
		return err
	}
	return d.Detacher.Detach(ctx, filepath.Base(path), d.disks.node)
}
