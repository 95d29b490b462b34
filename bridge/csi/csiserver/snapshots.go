package csiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// snapshots serves the calls of the controller service for snapshots.
type snapshots struct {
	*resolved

	locks *locks
	state *stateRecords
}

// checkSnapshotID refuses a missing or an invalid id.
func checkSnapshotID(id string) error {
	return csispec.CheckID("snapshot_id", id, csispec.MaxString)
}

// snapshotter returns the plugin if it supports snapshots.
func (s *resolved) snapshotter(call string) (volume.SnapshottableVolumePlugin, error) {
	plugin, ok := s.plugin.(volume.SnapshottableVolumePlugin)
	if !ok || !s.makes() || !s.can.Has(volume.CapSnapshot) {
		return nil, unimplemented(call)
	}
	return plugin, nil
}

// CreateSnapshot creates one snapshot for each name.
func (s *snapshots) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	plugin, err := s.snapshotter("CreateSnapshot")
	if err != nil {
		return nil, err
	}
	if err := csispec.CheckName(r.GetName()); err != nil {
		return nil, err
	}
	if err := csispec.CheckID("source_volume_id", r.GetSourceVolumeId(), csispec.MaxString); err != nil {
		return nil, err
	}
	if r.GetAccessibilityRequirements() != nil {
		return nil, status.Error(codes.InvalidArgument, "accessibility_requirements: snapshots have no topology: leave it out")
	}
	var made *csi.Snapshot
	err = s.locks.exclusively(ctx, snapshotNameLock(r.GetName()), func() error {
		snapshot, err := s.create(ctx, plugin, r)
		made = s.message(snapshot)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: made}, nil
}

// create creates the snapshot, or returns the present state of an existing one.
func (s *snapshots) create(ctx context.Context, plugin volume.SnapshottableVolumePlugin, r *csi.CreateSnapshotRequest) (volume.Snapshot, error) {
	record, known := s.state.snapshots.Get(r.GetName())
	if known && record.Step == deleting {
		// Finish the deletion: a caller that never got an answer does not know the id with which to repeat DeleteSnapshot.
		if err := s.remove(ctx, plugin, record.Snapshot.Handle); err != nil {
			return volume.Snapshot{}, err
		}
		known = false
	}
	switch {
	case known && record.Source != r.GetSourceVolumeId():
		return volume.Snapshot{}, &volume.SnapshotSourceError{Name: record.Name, Has: []string{record.Source}, Wanted: []string{r.GetSourceVolumeId()}}
	case known && record.Step == made:
		// A snapshot that is missing is not created again: it would hold the data of a later time under the same name.
		if snapshot, err := plugin.GetSnapshot(ctx, record.Snapshot.Handle); !errors.Is(err, volume.ErrUnsupported) {
			return snapshot, err
		}
	case !known:
		v, ok := s.state.byID(r.GetSourceVolumeId())
		if !ok || v.Step != made {
			return volume.Snapshot{}, noSuchVolume(r.GetSourceVolumeId())
		}
		record = snapshotRecord{Step: making, Name: r.GetName(), Source: v.ID, PV: v.PV}
		if err := s.state.snapshots.Put(record.Name, record); err != nil {
			return volume.Snapshot{}, volume.Transient(err)
		}
	}
	snapshot, err := s.take(ctx, plugin, record, withoutKubernetes(r.GetParameters()))
	if err != nil {
		switch {
		case record.Step == making && (!known || refused(err)):
			err = dropUnmade(s.resolved, s.state.snapshots, record.Name, err)
		case !refused(err):
			err = mayBeThere(err)
		}
		return volume.Snapshot{}, err
	}
	record.Step, record.Snapshot = made, snapshot
	if err := s.state.snapshots.Put(record.Name, record); err != nil {
		return volume.Snapshot{}, volume.Uncertain(err)
	}
	return snapshot, nil
}

// take calls the plugin. The same request has the same snapshot name.
func (s *snapshots) take(
	ctx context.Context, plugin volume.SnapshottableVolumePlugin, record snapshotRecord, parameters map[string]string,
) (volume.Snapshot, error) {
	source := volume.NewSpecFromPersistentVolume(record.PV.DeepCopy(), false)
	if can, err := plugin.CanSnapshot(source); err != nil || !can {
		return volume.Snapshot{}, errors.Join(fmt.Errorf("volume %s: no snapshot can be made of it: %w", volume.Quote(record.Source), volume.ErrInvalid), err)
	}
	snapshot, err := plugin.CreateSnapshot(ctx, volume.SnapshotOptions{Name: element(record.Name), Source: source, Parameters: parameters})
	if err != nil {
		return volume.Snapshot{}, err
	}
	name, err := s.plugin.GetVolumeName(source)
	if err == nil && snapshot.SourceVolume != name {
		err = fmt.Errorf("the plugin has made a snapshot of volume %s, and not of %s", volume.Quote(snapshot.SourceVolume), volume.Quote(name))
	}
	return snapshot, volume.Uncertain(errors.Join(err, checkSnapshotID(snapshot.Handle)))
}

// dropUnmade removes the record of an object that was not made. err must be about all attempts, or about the first. If
// err is uncertain, the object may exist, and the record stays.
func dropUnmade[T any](s *resolved, records *record.Table[T], name string, err error) error {
	if outcome.IsUncertain(err) {
		return err
	}
	if removing := records.Remove(name); removing != nil {
		s.logger.Warn("the record of what was not made stays", "name", name, "error", removing)
	}
	return err
}

// mayBeThere makes an error uncertain. The error is about the last attempt only: an earlier one may have created the
// object, so the caller must repeat the call.
func mayBeThere(err error) error {
	return volume.Uncertain(fmt.Errorf("%w (an earlier attempt may have made it: repeat the call)", err))
}

// DeleteSnapshot deletes a snapshot of this server or a foreign one: its id is the plugin's own. A missing snapshot is
// no error.
func (s *snapshots) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	plugin, err := s.snapshotter("DeleteSnapshot")
	if err != nil {
		return nil, err
	}
	id := r.GetSnapshotId()
	if err := checkSnapshotID(id); err != nil {
		return nil, err
	}
	remove := func() error { return s.remove(ctx, plugin, id) }
	if record, ok := s.state.snapshotByID(id); ok {
		err = s.locks.exclusively(ctx, snapshotNameLock(record.Name), remove)
	} else {
		err = remove()
	}
	if err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// remove is delete under the lock of the id. If there is a record, the caller holds the lock of its name.
func (s *snapshots) remove(ctx context.Context, plugin volume.SnapshottableVolumePlugin, id string) error {
	return s.locks.exclusively(ctx, snapshotIDLock(id), func() error { return s.delete(ctx, plugin, id) })
}

func (s *snapshots) delete(ctx context.Context, plugin volume.SnapshottableVolumePlugin, id string) error {
	record, known := s.state.snapshotByID(id)
	before := record.Step
	if known {
		record.Step = deleting
		if err := s.state.snapshots.Put(record.Name, record); err != nil {
			return volume.Transient(err)
		}
	}
	err := plugin.DeleteSnapshot(ctx, id)
	if known && leftAlone(err) {
		record.Step = before
		err = errors.Join(err, s.state.snapshots.Put(record.Name, record))
	}
	if errors.Is(err, volume.ErrInfeasible) && outcome.ClassOf(err) == outcome.Final {
		return status.Error(codes.InvalidArgument, err.Error()) // the code that the specification requires for a snapshot of a group
	}
	if err != nil || !known {
		return err
	}
	if err := s.state.snapshots.Remove(record.Name); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

// leftAlone reports whether err says that this call deleted nothing. An earlier call may have deleted something.
func leftAlone(err error) bool {
	return refused(err) || errors.Is(err, volume.ErrInUse) && !outcome.IsUncertain(err)
}

// GetSnapshot returns the present state of a snapshot.
func (s *snapshots) GetSnapshot(ctx context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if _, err := s.snapshotter("GetSnapshot"); err != nil {
		return nil, err
	}
	if err := checkSnapshotID(r.GetSnapshotId()); err != nil {
		return nil, err
	}
	snapshot, err := s.look(ctx, r.GetSnapshotId())
	if errors.Is(err, volume.ErrUnsupported) {
		return nil, status.Errorf(codes.Unimplemented, "snapshot %s is not on record: %v", volume.Quote(r.GetSnapshotId()), err)
	}
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: s.message(snapshot)}, nil
}

// look returns the plugin's present state of a snapshot, or the recorded state if the plugin cannot look snapshots up.
// If the snapshot is missing, the error matches [volume.ErrNotFound]. A recorded snapshot whose deletion has begun is an
// error: it may not be whole any more. A plugin that can look snapshots up reports itself what is left while it deletes.
func (s *snapshots) look(ctx context.Context, id string) (volume.Snapshot, error) {
	plugin, err := s.snapshotter("GetSnapshot")
	if err != nil {
		return volume.Snapshot{}, err
	}
	snapshot, err := plugin.GetSnapshot(ctx, id)
	if !errors.Is(err, volume.ErrUnsupported) {
		return snapshot, err
	}
	if record, ok := s.state.snapshotByID(id); ok {
		return record.Snapshot, record.Step.checkKept(id)
	}
	return s.find(ctx, func(snapshot volume.Snapshot) bool { return snapshot.Handle == id }, err)
}

// checkKept returns an error for a volume, a snapshot or a group whose deletion has begun.
func (s volumeStep) checkKept(id string) error {
	if s == deleting {
		return status.Errorf(codes.Unavailable, "the deletion of %s has begun and may go on: repeat it", volume.Quote(id))
	}
	return nil
}

// find returns the snapshot in the plugin's list for which is returns true. If the plugin has no list, it returns the
// error unknown.
func (s *snapshots) find(ctx context.Context, is func(volume.Snapshot) bool, unknown error) (volume.Snapshot, error) {
	lister, ok := s.plugin.(volume.SnapshotLister)
	if !ok || !s.can.Has(volume.CapListSnapshots) {
		return volume.Snapshot{}, unknown
	}
	all, err := lister.ListSnapshots(ctx)
	if err != nil {
		return volume.Snapshot{}, err
	}
	if at := slices.IndexFunc(all, is); at >= 0 {
		return all[at], nil
	}
	return volume.Snapshot{}, fmt.Errorf("there is no such snapshot: %w", volume.ErrNotFound)
}

// ListSnapshots returns all snapshots of the plugin, foreign ones too, sorted by id.
func (s *snapshots) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	lister, ok := s.plugin.(volume.SnapshotLister)
	if !ok || !s.makes() || !s.can.Has(volume.CapListSnapshots) {
		return nil, unimplemented("ListSnapshots")
	}
	after, size, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	all, err := s.list(ctx, lister, r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	var found []*csi.Snapshot
	origins := s.origins()
	for _, snapshot := range all {
		message := origins.message(snapshot)
		if message.GetSnapshotId() > after && (r.GetSourceVolumeId() == "" || message.GetSourceVolumeId() == r.GetSourceVolumeId()) {
			found = append(found, message)
		}
	}
	slices.SortFunc(found, func(a, b *csi.Snapshot) int { return strings.Compare(a.GetSnapshotId(), b.GetSnapshotId()) })
	response := &csi.ListSnapshotsResponse{}
	if len(found) > size {
		found = found[:size]
		response.NextToken = tokenPrefix + found[size-1].GetSnapshotId()
	}
	for _, message := range found {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: message})
	}
	return response, nil
}

// list returns all snapshots, or the one with an id.
func (s *snapshots) list(ctx context.Context, lister volume.SnapshotLister, id string) ([]volume.Snapshot, error) {
	if id == "" {
		return lister.ListSnapshots(ctx)
	}
	snapshot, err := s.look(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []volume.Snapshot{snapshot}, nil
}

// message converts a snapshot for the client.
func (s *snapshots) message(snapshot volume.Snapshot) *csi.Snapshot {
	return s.origins().message(snapshot)
}

// origins are the ids of snapshots' source volumes: from the recorded snapshots, and from the plugin's names of the
// recorded volumes.
type origins struct{ bySnapshot, byName map[string]string }

func (s *snapshots) origins() origins {
	o := origins{bySnapshot: map[string]string{}, byName: map[string]string{}}
	for _, v := range s.state.volumes.Where(func(v volumeRecord) bool { return v.PV != nil }) {
		if name, err := s.plugin.GetVolumeName(volume.NewSpecFromPersistentVolume(v.PV, false)); err == nil {
			o.byName[name] = v.ID
		}
	}
	for _, group := range s.state.groups.Where(func(r groupRecord) bool { return r.Step != making }) {
		maps.Copy(o.bySnapshot, group.Origins)
	}
	for _, r := range s.state.snapshots.Where(func(r snapshotRecord) bool { return r.Step != making }) {
		o.bySnapshot[r.Snapshot.Handle] = r.Source
	}
	return o
}

// message returns the plugin's name for a volume without a record.
func (o origins) message(snapshot volume.Snapshot) *csi.Snapshot {
	source, ok := o.bySnapshot[snapshot.Handle]
	if !ok {
		source, ok = o.byName[snapshot.SourceVolume]
	}
	if !ok {
		source = snapshot.SourceVolume
	}
	return &csi.Snapshot{
		SnapshotId: snapshot.Handle, SourceVolumeId: source, GroupSnapshotId: snapshot.GroupHandle, SizeBytes: snapshot.RestoreSize,
		CreationTime: timestamppb.New(snapshot.CreationTime), ReadyToUse: snapshot.ReadyToUse,
	}
}
