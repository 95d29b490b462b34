package csidriver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// CreateGroupSnapshot implements [volume.GroupSnapshottableVolumePlugin]. Parameters are as for CreateSnapshot, with the keys of a
// VolumeGroupSnapshotClass.
func (n snapshots) CreateGroupSnapshot(ctx context.Context, options volume.GroupSnapshotOptions) (volume.GroupSnapshot, error) {
	request, parameters, err := n.groupRequest(options)
	if err != nil {
		return volume.GroupSnapshot{}, fmt.Errorf("driver %q: group of snapshots %q: %w", n.client.options.Driver, options.Name, err)
	}
	s, err := n.groupSession(ctx)
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	if request.Secrets, err = n.client.options.secret(ctx, parameters.refs[groupSnapshotterSecret]); err != nil {
		return volume.GroupSnapshot{}, err
	}
	answer, err := call(ctx, s, "CreateVolumeGroupSnapshot", csi.NewGroupControllerClient(s.conn).CreateVolumeGroupSnapshot, request)
	if err != nil {
		return volume.GroupSnapshot{}, explainRefusal(err, options.Name, request.GetSourceVolumeIds()...)
	}
	made, err := s.groupOf(answer.GetGroupSnapshot())
	if err == nil {
		err = sameSet("volumes", sourcesOf(made), request.GetSourceVolumeIds())
	}
	if err != nil {
		return volume.GroupSnapshot{}, s.refuse("CreateVolumeGroupSnapshot", err)
	}
	return made, nil
}

// groupRequest returns the request without secrets.
func (n snapshots) groupRequest(options volume.GroupSnapshotOptions) (*csi.CreateVolumeGroupSnapshotRequest, snapshotParameters, error) {
	if err := csispec.CheckName(options.Name); err != nil {
		return nil, snapshotParameters{}, err
	}
	var ids []string
	for _, spec := range options.Sources {
		src, err := n.client.sourceOf(spec)
		if err != nil {
			return nil, snapshotParameters{}, err
		}
		ids = append(ids, src.csi.VolumeHandle)
	}
	slices.Sort(ids) // The request is the same for any order of the sources.
	if len(ids) == 0 || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		return nil, snapshotParameters{}, fmt.Errorf("the volumes are %q: name at least one, and each once: %w", ids, volume.ErrInvalid)
	}
	parameters, err := splitSnapshotParameters(options.Parameters)
	return &csi.CreateVolumeGroupSnapshotRequest{Name: options.Name, SourceVolumeIds: ids, Parameters: parameters.own}, parameters, err
}

// groupSession returns the connection, if the driver supports groups.
func (n snapshots) groupSession(ctx context.Context) (*session, error) {
	s, err := n.client.session(ctx)
	if err == nil && !s.facts.group[csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT] {
		err = fmt.Errorf("driver %q: CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT is not among its capabilities: %w", s.facts.name, volume.ErrUnsupported)
	}
	return s, err
}

// GetGroupSnapshot implements [volume.GroupSnapshottableVolumePlugin].
func (n snapshots) GetGroupSnapshot(ctx context.Context, handle string, snapshots []string) (volume.GroupSnapshot, error) {
	if err := n.client.options.checkSnapshotHandle(handle); err != nil {
		return volume.GroupSnapshot{}, err
	}
	s, err := n.groupSession(ctx)
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	secrets, err := n.secretsFor(ctx, SnapshotCall{Method: "GetVolumeGroupSnapshot", Handle: handle})
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	answer, err := call(ctx, s, "GetVolumeGroupSnapshot", csi.NewGroupControllerClient(s.conn).GetVolumeGroupSnapshot,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: snapshots, Secrets: secrets})
	if err != nil {
		return volume.GroupSnapshot{}, err
	}
	found, err := s.groupOf(answer.GetGroupSnapshot())
	if err == nil && found.Handle != handle {
		err = fmt.Errorf("it is about group %q and not about %q: %w", found.Handle, handle, volume.ErrInvalid)
	}
	if err == nil && len(snapshots) > 0 {
		err = sameSet("snapshots", handlesOf(found), snapshots)
	}
	if err != nil {
		return volume.GroupSnapshot{}, s.invalidAnswer("GetVolumeGroupSnapshot", err)
	}
	return found, nil
}

// DeleteGroupSnapshot implements [volume.GroupSnapshottableVolumePlugin].
func (n snapshots) DeleteGroupSnapshot(ctx context.Context, handle string, snapshots []string) error {
	if err := n.client.options.checkSnapshotHandle(handle); err != nil {
		return err
	}
	s, err := n.groupSession(ctx)
	if err != nil {
		return err
	}
	secrets, err := n.secretsFor(ctx, SnapshotCall{Method: "DeleteVolumeGroupSnapshot", Handle: handle})
	if err != nil {
		return err
	}
	_, err = call(ctx, s, "DeleteVolumeGroupSnapshot", csi.NewGroupControllerClient(s.conn).DeleteVolumeGroupSnapshot,
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: handle, SnapshotIds: snapshots, Secrets: secrets})
	return err
}

// groupOf converts a driver's answer about a group; its snapshots are sorted by handle. The group is ready if the
// driver says so for all of it. An error says that the answer violates the specification.
func (s *session) groupOf(answer *csi.VolumeGroupSnapshot) (volume.GroupSnapshot, error) {
	if err := s.options.checkSnapshotHandle(answer.GetGroupSnapshotId()); err != nil {
		return volume.GroupSnapshot{}, err
	}
	created, err := timeOf(answer.GetCreationTime())
	if err != nil {
		return volume.GroupSnapshot{}, fmt.Errorf("group %q: %w", answer.GetGroupSnapshotId(), err)
	}
	group := volume.GroupSnapshot{Handle: answer.GetGroupSnapshotId(), CreationTime: created, ReadyToUse: answer.GetReadyToUse()}
	for _, member := range answer.GetSnapshots() {
		snapshot, err := s.snapshotOf(member)
		if err != nil {
			return volume.GroupSnapshot{}, fmt.Errorf("group %q: %w", group.Handle, err)
		}
		if snapshot.GroupHandle != group.Handle {
			return volume.GroupSnapshot{}, fmt.Errorf("snapshot %q of group %q says that it is of group %q: %w",
				snapshot.Handle, group.Handle, snapshot.GroupHandle, volume.ErrInvalid)
		}
		group.ReadyToUse = group.ReadyToUse && snapshot.ReadyToUse
		group.Snapshots = append(group.Snapshots, snapshot)
	}
	slices.SortFunc(group.Snapshots, func(a, b volume.Snapshot) int { return strings.Compare(a.Handle, b.Handle) })
	return group, nil
}

func sourcesOf(group volume.GroupSnapshot) []string {
	var ids []string
	for _, s := range group.Snapshots {
		ids = append(ids, handleOfName(s.SourceVolume))
	}
	return ids
}

func handlesOf(group volume.GroupSnapshot) []string {
	var handles []string
	for _, s := range group.Snapshots {
		handles = append(handles, s.Handle)
	}
	return handles
}

// sameSet returns an error unless a group has exactly the requested volumes, each once.
func sameSet(what string, has, wanted []string) error {
	if slices.Equal(slices.Sorted(slices.Values(has)), slices.Sorted(slices.Values(wanted))) {
		return nil
	}
	return fmt.Errorf("the group has the %s %q, and should have %q: %w", what, has, wanted, volume.ErrInvalid)
}
