package fakedriver

import (
	"context"
	"os"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controller is the driver's controller service.
type controller struct {
	csi.UnimplementedControllerServer
	*storage
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (c controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range c.current().Controller {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc},
		}})
	}
	return answer, nil
}

// CreateVolume implements csi.ControllerServer. A volume is a directory in Options.Dir.
func (c controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range r.GetParameters() {
		if key != Parameter {
			return nil, status.Errorf(codes.InvalidArgument, "parameter %q is not known", key)
		}
	}
	if err := checkAttributes(r.GetMutableParameters()); err != nil {
		return nil, err
	}
	id := "vol-" + r.GetName()
	size := max(r.GetCapacityRange().GetRequiredBytes(), 1<<20)
	v := c.volumes[id]
	if v == nil {
		if err := c.checkSource(r); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(c.path(id), 0o755); err != nil {
			return nil, err
		}
		v = &Volume{ID: id, Name: r.GetName(), Size: size}
		if err := c.copySource(v, r); err != nil {
			return nil, err
		}
		c.volumes[id] = v
	}
	if v.Size < size {
		return nil, status.Error(codes.AlreadyExists, "another size")
	}
	v.modify(r.GetMutableParameters())
	answer := &csi.Volume{VolumeId: id, CapacityBytes: v.Size, VolumeContext: map[string]string{"made-of": r.GetName()}, ContentSource: r.GetVolumeContentSource()}
	if c.options.Topology != nil {
		answer.AccessibleTopology = []*csi.Topology{{Segments: c.options.Topology}}
	}
	return &csi.CreateVolumeResponse{Volume: answer}, nil
}

// checkSource refuses a missing snapshot, and a volume smaller than its snapshot. The caller holds the lock.
func (c controller) checkSource(r *csi.CreateVolumeRequest) error {
	source := r.GetVolumeContentSource().GetSnapshot()
	if source == nil {
		return nil
	}
	s := c.snapshots[source.GetSnapshotId()]
	switch {
	case s == nil:
		return status.Error(codes.NotFound, "no such snapshot")
	case r.GetCapacityRange().GetRequiredBytes() < s.GetSizeBytes():
		return status.Error(codes.OutOfRange, "smaller than the snapshot")
	}
	return nil
}

// copySource copies the content source into a new volume. The caller holds the lock.
func (c controller) copySource(v *Volume, r *csi.CreateVolumeRequest) error {
	if snapshot := r.GetVolumeContentSource().GetSnapshot(); snapshot != nil {
		return c.restore(v, snapshot.GetSnapshotId())
	}
	origin := r.GetVolumeContentSource().GetVolume()
	if origin == nil || c.has(ClonesNothing) {
		return nil
	}
	from, err := c.volume(origin.GetVolumeId())
	if err != nil {
		return err
	}
	return os.CopyFS(c.path(v.ID), os.DirFS(c.path(from.ID)))
}

// DeleteVolume implements csi.ControllerServer.
func (c controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volumes[r.GetVolumeId()]
	if v != nil && len(v.Nodes)+len(v.Staged)+len(v.Published) > 0 {
		return nil, status.Error(codes.FailedPrecondition, "in use")
	}
	if c.options.Memory && v != nil {
		if err := c.unmount(ctx, c.path(v.ID)); err != nil {
			return nil, err
		}
	}
	if c.has(LeavesTheStorage) {
		delete(c.volumes, r.GetVolumeId())
		return &csi.DeleteVolumeResponse{}, nil
	}
	return &csi.DeleteVolumeResponse{}, c.erase(r.GetVolumeId())
}

// ControllerPublishVolume implements csi.ControllerServer.
func (c controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(v.Nodes, r.GetNodeId()) {
		if len(v.Nodes) > 0 {
			return nil, status.Error(codes.FailedPrecondition, "published to node "+v.Nodes[0])
		}
		v.Nodes = append(v.Nodes, r.GetNodeId())
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"lun": strconv.Itoa(len(r.GetVolumeId())), "node": r.GetNodeId()}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (c controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.volumes[r.GetVolumeId()]; v != nil {
		v.Nodes = slices.DeleteFunc(v.Nodes, func(node string) bool { return node == r.GetNodeId() })
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ListVolumes implements csi.ControllerServer, two on a page.
func (c controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	all := c.Volumes()
	start := 0
	if token := r.GetStartingToken(); token != "" {
		var err error
		if start, err = strconv.Atoi(token); err != nil || start > len(all) {
			return nil, status.Error(codes.Aborted, "no such token")
		}
	}
	answer := &csi.ListVolumesResponse{}
	end := min(start+2, len(all))
	for _, v := range all[start:end] {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{
			Volume: &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size},
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.Nodes},
		})
	}
	if end < len(all) {
		answer.NextToken = strconv.Itoa(end)
	}
	return answer, nil
}

// ControllerGetVolume implements csi.ControllerServer.
func (c controller) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size},
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: slices.Clone(v.Nodes)},
	}, nil
}

// GetCapacity implements csi.ControllerServer.
func (c controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	for key := range r.GetParameters() {
		if key != Parameter {
			return nil, status.Errorf(codes.InvalidArgument, "parameter %q is not known", key)
		}
	}
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 40}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (c controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.Size = max(v.Size, r.GetCapacityRange().GetRequiredBytes())
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

func checkAttributes(parameters map[string]string) error {
	for key := range parameters {
		if key != Attribute {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q is not known", key)
		}
	}
	return nil
}

// ControllerModifyVolume implements csi.ControllerServer.
func (c controller) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.volume(r.GetVolumeId())
	if err == nil {
		err = checkAttributes(r.GetMutableParameters())
	}
	if err != nil {
		return nil, err
	}
	v.modify(r.GetMutableParameters())
	return &csi.ControllerModifyVolumeResponse{}, nil
}
