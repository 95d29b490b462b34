package fakedriver

import (
	"context"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// groupController is the driver's group controller service.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	*storage
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (c groupController) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	answer := &csi.GroupControllerGetCapabilitiesResponse{}
	for _, rpc := range c.current().Group {
		answer.Capabilities = append(answer.Capabilities, &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: rpc},
		}})
	}
	return answer, nil
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer. It does not stop writers meanwhile.
func (c groupController) CreateVolumeGroupSnapshot(
	_ context.Context, r *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	id := "group-" + r.GetName()
	made := c.groups[id]
	if made == nil {
		for _, source := range r.GetSourceVolumeIds() {
			if _, err := c.volume(source); err != nil {
				return nil, err
			}
		}
		made = &csi.VolumeGroupSnapshot{GroupSnapshotId: id, CreationTime: timestamppb.Now()}
		for i, source := range r.GetSourceVolumeIds() {
			member, err := c.takeSnapshot("snap-"+r.GetName()+"-"+strconv.Itoa(i), source)
			if err != nil {
				return nil, err
			}
			member.GroupSnapshotId = id
			made.Snapshots = append(made.Snapshots, member)
		}
		c.groups[id] = made
	}
	var sources []string
	for _, s := range made.GetSnapshots() {
		sources = append(sources, s.GetSourceVolumeId())
	}
	if !slices.Equal(slices.Sorted(slices.Values(sources)), slices.Sorted(slices.Values(r.GetSourceVolumeIds()))) {
		return nil, status.Error(codes.AlreadyExists, "of other volumes")
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: c.answerOfGroup(made)}, nil
}

// answerOfGroup returns the driver's answer about a group. The caller holds the lock.
func (c groupController) answerOfGroup(g *csi.VolumeGroupSnapshot) *csi.VolumeGroupSnapshot {
	answer := proto.CloneOf(g)
	answer.ReadyToUse = !c.options.NeverReady
	for i, s := range answer.GetSnapshots() {
		answer.Snapshots[i] = c.answerOf(s)
	}
	return answer
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (c groupController) GetVolumeGroupSnapshot(
	_ context.Context, r *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[r.GetGroupSnapshotId()]
	if g == nil {
		return nil, status.Error(codes.NotFound, "no such group")
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: c.answerOfGroup(g)}, nil
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (c groupController) DeleteVolumeGroupSnapshot(
	_ context.Context, r *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[r.GetGroupSnapshotId()]
	if g == nil {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	for _, id := range r.GetSnapshotIds() {
		if !slices.ContainsFunc(g.GetSnapshots(), func(s *csi.Snapshot) bool { return s.GetSnapshotId() == id }) {
			return nil, status.Error(codes.InvalidArgument, "it has no such snapshot")
		}
	}
	for _, s := range g.GetSnapshots() {
		if err := c.removeSnapshot(s.GetSnapshotId()); err != nil {
			return nil, err
		}
	}
	delete(c.groups, g.GetGroupSnapshotId())
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}
