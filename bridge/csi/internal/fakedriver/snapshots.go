package fakedriver

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Snapshots returns the sorted ids of the snapshots.
func (d *Driver) Snapshots() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for id := range d.snapshots {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// CreateSnapshot implements csi.ControllerServer. A snapshot is a directory in Options.Dir.
func (d *Driver) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	id := "snap-" + r.GetName()
	made := d.snapshots[id]
	if made == nil {
		var err error
		if made, err = d.take(id, r.GetSourceVolumeId()); err != nil {
			return nil, err
		}
	}
	if made.GetSourceVolumeId() != r.GetSourceVolumeId() {
		return nil, status.Error(codes.AlreadyExists, "of another volume")
	}
	return &csi.CreateSnapshotResponse{Snapshot: d.told(made)}, nil
}

func checkParameters(parameters map[string]string) error {
	for key := range parameters {
		if key != Parameter && !strings.HasPrefix(key, "csi.storage.k8s.io/") {
			return status.Errorf(codes.InvalidArgument, "parameter %q is not known", key)
		}
	}
	return nil
}

// take copies a volume. The caller holds the lock.
func (d *Driver) take(id, source string) (*csi.Snapshot, error) {
	v, err := d.volume(source)
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(d.path(id), os.DirFS(d.path(v.ID))); err != nil {
		return nil, err
	}
	d.snapshots[id] = &csi.Snapshot{
		SnapshotId: id, SourceVolumeId: source, SizeBytes: v.Size, CreationTime: timestamppb.Now(), ReadyToUse: true,
	}
	return d.snapshots[id], nil
}

// told returns the driver's answer about a snapshot. The caller holds the lock.
func (d *Driver) told(s *csi.Snapshot) *csi.Snapshot {
	told := proto.CloneOf(s)
	told.ReadyToUse = !d.options.NeverReady
	return told
}

// checkSource refuses a missing snapshot, and a volume smaller than its snapshot. The caller holds the lock.
func (d *Driver) checkSource(r *csi.CreateVolumeRequest) error {
	source := r.GetVolumeContentSource().GetSnapshot()
	if source == nil {
		return nil
	}
	s := d.snapshots[source.GetSnapshotId()]
	switch {
	case s == nil:
		return status.Error(codes.NotFound, "no such snapshot")
	case r.GetCapacityRange().GetRequiredBytes() < s.GetSizeBytes():
		return status.Error(codes.OutOfRange, "smaller than the snapshot")
	}
	return nil
}

// The caller holds the lock.
func (d *Driver) restore(v *Volume, id string) error {
	return os.CopyFS(d.path(v.ID), os.DirFS(d.path(id)))
}

// GetSnapshot implements csi.ControllerServer.
func (d *Driver) GetSnapshot(_ context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.snapshots[r.GetSnapshotId()]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such snapshot")
	}
	return &csi.GetSnapshotResponse{Snapshot: d.told(s)}, nil
}

// ListSnapshots implements csi.ControllerServer, in pages of two.
func (d *Driver) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	ids := d.Snapshots()
	d.mu.Lock()
	defer d.mu.Unlock()
	ids = slices.DeleteFunc(ids, func(id string) bool {
		s := d.snapshots[id]
		return s == nil || r.GetSnapshotId() != "" && id != r.GetSnapshotId() ||
			r.GetSourceVolumeId() != "" && s.GetSourceVolumeId() != r.GetSourceVolumeId()
	})
	start, err := strconv.Atoi("0" + r.GetStartingToken())
	if err != nil || start > len(ids) {
		return nil, status.Error(codes.Aborted, "no such token")
	}
	answer := &csi.ListSnapshotsResponse{}
	end := min(start+2, len(ids))
	for _, id := range ids[start:end] {
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: d.told(d.snapshots[id])})
	}
	if end < len(ids) {
		answer.NextToken = strconv.Itoa(end)
	}
	return answer, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.snapshots[r.GetSnapshotId()]
	if s == nil {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if s.GetGroupSnapshotId() != "" {
		return nil, status.Error(codes.InvalidArgument, "it is one of a group")
	}
	return &csi.DeleteSnapshotResponse{}, d.drop(s.GetSnapshotId())
}

// drop deletes a snapshot. The caller holds the lock.
func (d *Driver) drop(id string) error {
	root, err := os.OpenRoot(d.options.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	delete(d.snapshots, id)
	return root.RemoveAll(id)
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (d *Driver) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	answer := &csi.GroupControllerGetCapabilitiesResponse{}
	for _, c := range d.is().Group {
		answer.Capabilities = append(answer.Capabilities, &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: c},
		}})
	}
	return answer, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer. It does not stop writers meanwhile.
func (d *Driver) CreateVolumeGroupSnapshot(
	_ context.Context, r *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	id := "group-" + r.GetName()
	made := d.groups[id]
	if made == nil {
		for _, source := range r.GetSourceVolumeIds() {
			if _, err := d.volume(source); err != nil {
				return nil, err
			}
		}
		made = &csi.VolumeGroupSnapshot{GroupSnapshotId: id, CreationTime: timestamppb.Now()}
		for i, source := range r.GetSourceVolumeIds() {
			member, err := d.take("snap-"+r.GetName()+"-"+strconv.Itoa(i), source)
			if err != nil {
				return nil, err
			}
			member.GroupSnapshotId = id
			made.Snapshots = append(made.Snapshots, member)
		}
		d.groups[id] = made
	}
	var sources []string
	for _, s := range made.GetSnapshots() {
		sources = append(sources, s.GetSourceVolumeId())
	}
	if !slices.Equal(slices.Sorted(slices.Values(sources)), slices.Sorted(slices.Values(r.GetSourceVolumeIds()))) {
		return nil, status.Error(codes.AlreadyExists, "of other volumes")
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: d.toldGroup(made)}, nil
}

// The caller holds the lock.
func (d *Driver) toldGroup(g *csi.VolumeGroupSnapshot) *csi.VolumeGroupSnapshot {
	told := proto.CloneOf(g)
	told.ReadyToUse = !d.options.NeverReady
	for i, s := range told.GetSnapshots() {
		told.Snapshots[i] = d.told(s)
	}
	return told
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) GetVolumeGroupSnapshot(
	_ context.Context, r *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.groups[r.GetGroupSnapshotId()]
	if g == nil {
		return nil, status.Error(codes.NotFound, "no such group")
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: d.toldGroup(g)}, nil
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) DeleteVolumeGroupSnapshot(
	_ context.Context, r *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.groups[r.GetGroupSnapshotId()]
	if g == nil {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	for _, id := range r.GetSnapshotIds() {
		if !slices.ContainsFunc(g.GetSnapshots(), func(s *csi.Snapshot) bool { return s.GetSnapshotId() == id }) {
			return nil, status.Error(codes.InvalidArgument, "it has no such snapshot")
		}
	}
	for _, s := range g.GetSnapshots() {
		if err := d.drop(s.GetSnapshotId()); err != nil {
			return nil, err
		}
	}
	delete(d.groups, g.GetGroupSnapshotId())
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}
