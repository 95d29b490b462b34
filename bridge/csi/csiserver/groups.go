package csiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// groupController is the service that makes snapshots of several volumes at one moment.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	*resolved

	snapshots *snapshots
	locks     *locks
	state     *stateRecords
}

// GroupControllerGetCapabilities says which calls are served.
func (g *groupController) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	if _, err := g.groups("GroupControllerGetCapabilities"); err != nil {
		return nil, err
	}
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// groups returns the plugin, if it makes groups of snapshots.
func (g *groupController) groups(call string) (volume.GroupSnapshottableVolumePlugin, error) {
	plugin, ok := g.plugin.(volume.GroupSnapshottableVolumePlugin)
	if !ok || !g.makes() || !g.can.Has(volume.CapGroupSnapshot) {
		return nil, unimplemented(call)
	}
	return plugin, nil
}

func checkGroupID(id string) error {
	return csispec.CheckID("group_snapshot_id", id, csispec.MaxString)
}

// CreateVolumeGroupSnapshot makes a snapshot of each volume at one moment, once for each name.
func (g *groupController) CreateVolumeGroupSnapshot(
	ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	plugin, err := g.groups("CreateVolumeGroupSnapshot")
	if err != nil {
		return nil, err
	}
	if err := csispec.CheckName(r.GetName()); err != nil {
		return nil, err
	}
	ids := slices.Sorted(slices.Values(r.GetSourceVolumeIds()))
	if len(ids) == 0 || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		return nil, status.Error(codes.InvalidArgument, "source_volume_ids: name at least one volume, and each once")
	}
	var made *csi.VolumeGroupSnapshot
	err = g.locks.exclusively(ctx, groupNameLock(r.GetName()), func() error {
		record, err := g.create(ctx, plugin, r)
		made = g.message(record.Group)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: made}, nil
}

// create makes the group, or returns the one that was made as it is now.
func (g *groupController) create(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, r *csi.CreateVolumeGroupSnapshotRequest,
) (groupRecord, error) {
	record, known := g.state.groups.Get(r.GetName())
	if known && record.Step == deleting {
		// A caller that has forgotten it knows no id to delete it by.
		deletion := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: record.Group.Handle}
		if err := g.remove(ctx, plugin, deletion); err != nil {
			return record, err
		}
		record, known = groupRecord{}, false
	}
	if known {
		if err := record.checkSame(r); err != nil {
			return record, err
		}
	}
	switch {
	case known && record.Step == made:
		group, err := plugin.GetGroupSnapshot(ctx, record.Group.Handle, record.snapshotIDs())
		if !errors.Is(err, volume.ErrUnsupported) {
			record.Group = group
			return record, err
		}
	case !known:
		sources, err := g.sources(r.GetSourceVolumeIds())
		if err != nil {
			return record, err
		}
		record = groupRecord{Step: making, Name: r.GetName(), Sources: sources, Parameters: parametersDigest(r.GetParameters())}
		if err := g.state.groups.Put(record.Name, record); err != nil {
			return record, volume.Transient(err)
		}
	}
	taken, err := g.take(ctx, plugin, record, withoutKubernetes(r.GetParameters()))
	if err != nil {
		return record, g.notTaken(record, known, err)
	}
	if err := g.state.groups.Put(taken.Name, taken); err != nil {
		return taken, volume.Uncertain(err)
	}
	return taken, nil
}

// notTaken returns what err says of a group: of one that earlier attempts may have made it must speak of those too.
func (g *groupController) notTaken(record groupRecord, known bool, err error) error {
	switch {
	case record.Step == making && (!known || refused(err)):
		return dropUnmade(g.resolved, g.state.groups, record.Name, err)
	case !refused(err):
		return mayBeThere(err)
	}
	return err
}

// checkSame refuses another group of the same name.
func (r groupRecord) checkSame(wanted *csi.CreateVolumeGroupSnapshotRequest) error {
	has := slices.Sorted(maps.Keys(r.Sources))
	ids := slices.Sorted(slices.Values(wanted.GetSourceVolumeIds()))
	if !slices.Equal(has, ids) {
		return &volume.SnapshotSourceError{Name: r.Name, Has: has, Wanted: ids}
	}
	if r.Parameters != parametersDigest(wanted.GetParameters()) {
		return status.Errorf(codes.AlreadyExists, "there is a group with the name %s, and it was made with other parameters", volume.Quote(r.Name))
	}
	return nil
}

func (r groupRecord) snapshotIDs() []string { return slices.Sorted(maps.Keys(r.Origins)) }

func (g *groupController) sources(ids []string) (map[string]*v1.PersistentVolume, error) {
	sources := map[string]*v1.PersistentVolume{}
	for _, id := range ids {
		v, ok := g.state.byID(id)
		if !ok || v.Step != made {
			return nil, noSuchVolume(id)
		}
		sources[id] = v.PV
	}
	return sources, nil
}

// take asks the plugin for the group, and returns the record of it.
func (g *groupController) take(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, record groupRecord, parameters map[string]string,
) (groupRecord, error) {
	options := volume.GroupSnapshotOptions{Name: element(record.Name), Parameters: parameters}
	ids := map[string]string{} // by the plugin's name of the volume
	for _, id := range slices.Sorted(maps.Keys(record.Sources)) {
		source := volume.NewSpecFromPersistentVolume(record.Sources[id].DeepCopy(), false)
		name, err := g.plugin.GetVolumeName(source)
		if err != nil {
			return record, err
		}
		ids[name] = id
		options.Sources = append(options.Sources, source)
	}
	group, err := plugin.CreateGroupSnapshot(ctx, options)
	if err != nil {
		return record, err
	}
	record.Step, record.Group, record.Origins = made, group, map[string]string{}
	for _, s := range group.Snapshots {
		record.Origins[s.Handle] = ids[s.SourceVolume]
		delete(ids, s.SourceVolume)
	}
	if len(ids) > 0 || len(record.Origins) != len(record.Sources) {
		return record, volume.Uncertain(fmt.Errorf("the plugin has made a group of %d snapshots of %d volumes", len(group.Snapshots), len(record.Sources)))
	}
	return record, volume.Uncertain(checkGroupID(group.Handle))
}

// GetVolumeGroupSnapshot returns a group as it is now.
func (g *groupController) GetVolumeGroupSnapshot(
	ctx context.Context, r *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	plugin, err := g.groups("GetVolumeGroupSnapshot")
	if err != nil {
		return nil, err
	}
	if err := checkGroupID(r.GetGroupSnapshotId()); err != nil {
		return nil, err
	}
	group, err := plugin.GetGroupSnapshot(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	record, known := g.state.groupByID(r.GetGroupSnapshotId())
	if errors.Is(err, volume.ErrUnsupported) && known {
		group, err = record.Group, record.Step.checkKept(record.Group.Handle)
	}
	if err != nil {
		return nil, err
	}
	for _, id := range r.GetSnapshotIds() {
		if !slices.ContainsFunc(group.Snapshots, func(s volume.Snapshot) bool { return s.Handle == id }) {
			return nil, status.Errorf(codes.InvalidArgument, "snapshot %s is none of group %s", volume.Quote(id), volume.Quote(group.Handle))
		}
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g.message(group)}, nil
}

// message is what the caller gets of a group.
func (g *groupController) message(group volume.GroupSnapshot) *csi.VolumeGroupSnapshot {
	message := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: group.Handle, CreationTime: timestamppb.New(group.CreationTime), ReadyToUse: group.ReadyToUse,
	}
	origins := g.snapshots.origins()
	for _, s := range group.Snapshots {
		message.Snapshots = append(message.Snapshots, origins.message(s))
	}
	return message
}

// DeleteVolumeGroupSnapshot deletes a group with its snapshots. One that is not there is no error.
func (g *groupController) DeleteVolumeGroupSnapshot(
	ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	plugin, err := g.groups("DeleteVolumeGroupSnapshot")
	if err != nil {
		return nil, err
	}
	id := r.GetGroupSnapshotId()
	if err := checkGroupID(id); err != nil {
		return nil, err
	}
	remove := func() error { return g.remove(ctx, plugin, r) }
	if record, ok := g.state.groupByID(id); ok {
		err = g.locks.exclusively(ctx, groupNameLock(record.Name), remove)
	} else {
		err = remove()
	}
	if err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// remove is delete with the lock of the id. Its caller has that of the name, where there is a record.
func (g *groupController) remove(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, r *csi.DeleteVolumeGroupSnapshotRequest,
) error {
	return g.locks.exclusively(ctx, groupIDLock(r.GetGroupSnapshotId()), func() error { return g.delete(ctx, plugin, r) })
}

func (g *groupController) delete(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, r *csi.DeleteVolumeGroupSnapshotRequest,
) error {
	record, known := g.state.groupByID(r.GetGroupSnapshotId())
	before, members := record.Step, r.GetSnapshotIds()
	if known {
		if len(members) == 0 {
			members = record.snapshotIDs() // Some storage must get them.
		}
		record.Step = deleting
		if err := g.state.groups.Put(record.Name, record); err != nil {
			return volume.Transient(err)
		}
	}
	err := plugin.DeleteGroupSnapshot(ctx, r.GetGroupSnapshotId(), members)
	if known && leftAlone(err) {
		record.Step = before
		return errors.Join(err, g.state.groups.Put(record.Name, record))
	}
	if err != nil || !known {
		return err
	}
	if err := g.state.groups.Remove(record.Name); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}
