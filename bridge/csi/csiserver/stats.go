package csiserver

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// location is a path at which a volume is staged or published on this node.
type location struct {
	staging staging
	// publication is nil for a staging path.
	publication *publication
}

// locationOf finds a volume by its staging or target path.
func (n *node) locationOf(id, path string) (location, error) {
	if err := checkVolumeID(id); err != nil {
		return location{}, err
	}
	if path == "" {
		return location{}, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	st, staged := n.runtime.stagings.Get(id)
	if p, ok := n.runtime.publications.Get(publicationKey(id, uidOf(id, path))); ok && p.Done {
		return location{staging: st, publication: &p}, nil
	}
	if staged && st.Done && !st.Unstaging && st.Path == path {
		return location{staging: st}, nil
	}
	return location{}, status.Errorf(codes.NotFound, "volume %s is not at %s", volume.Quote(id), volume.Quote(path))
}

// NodeGetVolumeStats measures a volume.
func (n *node) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	at, err := n.locationOf(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	before, err := n.mountOf(ctx, at)
	if err != nil {
		return nil, err
	}
	measured, err := n.measure(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := n.checkStayed(ctx, r, before); err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usageOf(measured)}, nil
}

// mountOf returns the mount that proves that a volume is at a location. It is the zero value if the location has no mount of its own.
// The mount of a publication is unmounted before its plugin tears the volume down: as long as it is there, so is the volume.
func (n *node) mountOf(ctx context.Context, at location) (mount.MountPoint, error) {
	if at.publication != nil {
		there, bound, err := n.publications.binds.bound(ctx, at.publication.binding)
		if err == nil && !bound {
			err = notThere(at.publication.ID, at.publication.Target)
		}
		return there, err
	}
	mounting, ok := n.plugin.(volume.MountingVolumePlugin)
	if !ok || at.staging.MountPath == "" || !mounting.MountDeviceIsMount(volume.NewSpecFromPersistentVolume(at.staging.PV, at.staging.ReadOnly)) {
		return mount.MountPoint{}, nil
	}
	there, err := n.mounter.Lookup(ctx, at.staging.MountPath)
	if errors.Is(err, mount.ErrNotMounted) {
		err = notThere(at.staging.ID, at.staging.MountPath)
	}
	return there, err
}

// checkStayed refuses what was measured while the volume was taken away, in a call that may have been abandoned: it may be of the
// filesystem beneath, or of the next volume's device.
func (n *node) checkStayed(ctx context.Context, r *csi.NodeGetVolumeStatsRequest, before mount.MountPoint) error {
	at, err := n.locationOf(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return err
	}
	after, err := n.mountOf(ctx, at)
	if err == nil && !before.Identity().Is(after) {
		err = notThere(r.GetVolumeId(), r.GetVolumePath())
	}
	return err
}

func notThere(id, path string) error {
	return status.Errorf(codes.NotFound, "volume %s is not mounted at %s any more", volume.Quote(id), volume.Quote(path))
}

// measure returns the stats of the plugin or, without them, of the volume's filesystem.
func (n *node) measure(ctx context.Context, at location) (*volume.Metrics, error) {
	switch {
	case at.publication != nil && at.publication.Capability.Block:
		return volume.NewMetricsBlock(at.publication.Source).GetMetrics(ctx)
	case at.publication == nil && at.staging.Capability.Block:
		return volume.NewMetricsBlock(at.staging.Device).GetMetrics(ctx)
	case at.publication == nil:
		if at.staging.MountPath == "" {
			return nil, status.Errorf(codes.NotFound, "nothing of volume %s is mounted for staging: ask at a target path", volume.Quote(at.staging.ID))
		}
		return volume.NewMetricsStatFS(at.staging.MountPath).GetMetrics(ctx)
	}
	unmounter, err := n.plugin.NewUnmounter(at.publication.Name, at.publication.UID)
	if err != nil {
		return nil, err
	}
	measured, err := unmounter.GetMetrics(ctx)
	if errors.Is(err, volume.ErrUnsupported) {
		return volume.NewMetricsStatFS(at.publication.Target).GetMetrics(ctx)
	}
	return measured, err
}

func usageOf(m *volume.Metrics) []*csi.VolumeUsage {
	bytes := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: value(m.Capacity), Used: value(m.Used), Available: value(m.Available)}
	inodes := &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: value(m.Inodes), Used: value(m.InodesUsed), Available: value(m.InodesFree)}
	if m.Inodes == nil {
		return []*csi.VolumeUsage{bytes}
	}
	return []*csi.VolumeUsage{bytes, inodes}
}

// value returns 0 for an unknown quantity, as the specification requires.
func value(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}

// NodeExpandVolume expands a filesystem to the size of its storage.
func (n *node) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	plugin, ok := n.plugin.(volume.NodeExpandableVolumePlugin)
	if !ok || !n.can.Has(volume.CapNodeExpand) {
		return nil, unimplemented("NodeExpandVolume")
	}
	required, _, err := sizesOf(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if _, err := n.locationOf(r.GetVolumeId(), r.GetVolumePath()); err != nil {
		return nil, err
	}
	err = n.locks.exclusively(ctx, idLock(r.GetVolumeId()), func() error {
		at, err := n.locationOf(r.GetVolumeId(), r.GetVolumePath())
		if err != nil {
			return err
		}
		return n.grow(ctx, plugin, at, required)
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: required}, nil
}

func (n *node) grow(ctx context.Context, plugin volume.NodeExpandableVolumePlugin, at location, required int64) error {
	pv := at.staging.PV
	options := volume.NodeResizeOptions{
		DevicePath: at.staging.Device, DeviceStagePath: at.staging.MountPath, DeviceMountPath: at.staging.MountPath,
		NewSize: *resource.NewQuantity(required, resource.BinarySI),
	}
	if at.publication != nil {
		options.DeviceMountPath = at.publication.Source
	}
	if pv == nil {
		return status.Error(codes.FailedPrecondition, "the volume is not staged, and cannot be made larger here")
	}
	options.VolumeSpec = volume.NewSpecFromPersistentVolume(withCapacity(pv, required), false)
	grown, err := plugin.NodeExpand(ctx, options)
	if err == nil && !grown {
		return status.Error(codes.Unavailable, "the volume has not its new size yet: try again")
	}
	return err
}

func withCapacity(pv *v1.PersistentVolume, bytes int64) *v1.PersistentVolume {
	sized := pv.DeepCopy()
	sized.Spec.Capacity = storage(bytes)
	return sized
}
