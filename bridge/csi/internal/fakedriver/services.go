package fakedriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/mount"
)

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.is().Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
	}}}}
	for _, service := range d.is().Services {
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: service},
		}})
	}
	return answer, nil
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range d.is().Controller {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: c},
		}})
	}
	return answer, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.is().Node {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: c},
		}})
	}
	return answer, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	o := d.is()
	answer := &csi.NodeGetInfoResponse{NodeId: o.NodeID, MaxVolumesPerNode: o.MaxVolumes}
	if o.Topology != nil {
		answer.AccessibleTopology = &csi.Topology{Segments: o.Topology}
	}
	return answer, nil
}

// CreateVolume implements csi.ControllerServer. A volume is a directory in Options.Dir.
func (d *Driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
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
	v := d.volumes[id]
	if v == nil {
		if err := d.checkSource(r); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(d.path(id), 0o755); err != nil {
			return nil, err
		}
		v = &Volume{ID: id, Name: r.GetName(), Size: size}
		if err := d.fill(v, r); err != nil {
			return nil, err
		}
		d.volumes[id] = v
	}
	if v.Size < size {
		return nil, status.Error(codes.AlreadyExists, "another size")
	}
	v.give(r.GetMutableParameters())
	answer := &csi.Volume{VolumeId: id, CapacityBytes: v.Size, VolumeContext: map[string]string{"made-of": r.GetName()}, ContentSource: r.GetVolumeContentSource()}
	if d.options.Topology != nil {
		answer.AccessibleTopology = []*csi.Topology{{Segments: d.options.Topology}}
	}
	return &csi.CreateVolumeResponse{Volume: answer}, nil
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[r.GetVolumeId()]
	if v != nil && len(v.Nodes)+len(v.Staged)+len(v.Published) > 0 {
		return nil, status.Error(codes.FailedPrecondition, "in use")
	}
	if d.options.Memory && v != nil {
		if err := d.unmount(ctx, d.path(v.ID)); err != nil {
			return nil, err
		}
	}
	if d.has(LeavesTheStorage) {
		delete(d.volumes, r.GetVolumeId())
		return &csi.DeleteVolumeResponse{}, nil
	}
	return &csi.DeleteVolumeResponse{}, d.erase(r.GetVolumeId())
}

// erase deletes a volume. The caller holds the lock.
func (d *Driver) erase(id string) error {
	root, err := os.OpenRoot(d.options.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{filepath.Base(id), filepath.Base(id) + deviceSuffix} {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	delete(d.volumes, id)
	return nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
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
func (d *Driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[r.GetVolumeId()]; v != nil {
		v.Nodes = slices.DeleteFunc(v.Nodes, func(node string) bool { return node == r.GetNodeId() })
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ListVolumes implements csi.ControllerServer, two on a page.
func (d *Driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	all := d.Volumes()
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
func (d *Driver) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size},
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: slices.Clone(v.Nodes)},
	}, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	for key := range r.GetParameters() {
		if key != Parameter {
			return nil, status.Errorf(codes.InvalidArgument, "parameter %q is not known", key)
		}
	}
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 40}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.Size = max(v.Size, r.GetCapacityRange().GetRequiredBytes())
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

// Attribute is the only mutable parameter of the driver.
const Attribute = "tier"

func checkAttributes(parameters map[string]string) error {
	for key := range parameters {
		if key != Attribute {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q is not known", key)
		}
	}
	return nil
}

func (v *Volume) give(attributes map[string]string) {
	if v.Attributes == nil {
		v.Attributes = map[string]string{}
	}
	maps.Copy(v.Attributes, attributes)
}

// ControllerModifyVolume implements csi.ControllerServer.
func (d *Driver) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
	if err == nil {
		err = checkAttributes(r.GetMutableParameters())
	}
	if err != nil {
		return nil, err
	}
	v.give(r.GetMutableParameters())
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// NodeExpandVolume implements csi.NodeServer. It returns the size of the filesystem of Options.Dir.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

// NodeStageVolume implements csi.NodeServer: a bind mount of the volume's directory.
func (d *Driver) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if slices.Contains(v.Staged, r.GetStagingTargetPath()) {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if r.GetVolumeCapability().GetBlock() == nil {
		if _, err := os.Stat(r.GetStagingTargetPath()); err != nil {
			return nil, status.Error(codes.InvalidArgument, "the staging path is not there")
		}
		if err := d.bind(ctx, d.path(v.ID), r.GetStagingTargetPath(), nil); err != nil {
			return nil, err
		}
	}
	v.Staged = append(v.Staged, r.GetStagingTargetPath())
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.unmount(ctx, r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if v := d.volumes[r.GetVolumeId()]; v != nil {
		v.Staged = slices.DeleteFunc(v.Staged, func(path string) bool { return path == r.GetStagingTargetPath() })
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// volumeFor returns the volume to publish. It creates an inline volume first. The caller holds the lock.
func (d *Driver) volumeFor(r *csi.NodePublishVolumeRequest) (*Volume, error) {
	id := r.GetVolumeId()
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" || d.volumes[id] != nil {
		return d.volume(id)
	}
	d.volumes[id] = &Volume{ID: id, Inline: true, Size: 1 << 20}
	return d.volumes[id], os.Mkdir(d.path(id), 0o755)
}

// NodePublishVolume implements csi.NodeServer: a bind mount of what is staged, and of a file for a block device.
func (d *Driver) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volumeFor(r)
	if err != nil {
		return nil, err
	}
	if slices.Contains(v.Published, r.GetTargetPath()) && !d.has(StacksMounts) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if d.has(NeverMounts) {
		v.Published = append(v.Published, r.GetTargetPath())
		return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.GetTargetPath(), 0o750)
	}
	source, err := d.source(ctx, v)
	if err != nil {
		return nil, err
	}
	if !v.Inline && slices.Contains(d.options.Node, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		if !slices.Contains(v.Staged, r.GetStagingTargetPath()) {
			return nil, status.Error(codes.FailedPrecondition, "not staged")
		}
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		source = filepath.Join(d.options.Dir, v.ID+deviceSuffix)
		file, err := os.OpenFile(source, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	var options []string
	if r.GetReadonly() && !d.has(IgnoresReadOnly) {
		options = append(options, "ro")
	}
	if err := d.bind(ctx, source, r.GetTargetPath(), options); err != nil {
		return nil, err
	}
	v.Published = append(v.Published, r.GetTargetPath())
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.unmount(ctx, r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := d.mounter.RemoveTarget(ctx, r.GetTargetPath()); err != nil {
		return nil, err
	}
	if v := d.volumes[r.GetVolumeId()]; v != nil {
		v.Published = slices.DeleteFunc(v.Published, func(path string) bool { return path == r.GetTargetPath() })
		if v.Inline && len(v.Published) == 0 {
			return &csi.NodeUnpublishVolumeResponse{}, d.erase(v.ID)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.volume(r.GetVolumeId())
	if err != nil || !slices.Contains(v.Published, r.GetVolumePath()) {
		return nil, status.Error(codes.NotFound, "not there")
	}
	if d.has(MeasuresNothing) {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES}, {Unit: csi.VolumeUsage_INODES}}}, nil
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: v.Size, Used: 4096, Available: v.Size - 4096},
		{Unit: csi.VolumeUsage_INODES, Total: 100, Used: 1, Available: 99},
	}}, nil
}

// NodeGetVolumeHealth implements csi.NodeServer: all volumes are well.
func (d *Driver) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: r.GetVolumeId()}}, nil
}

func (d *Driver) is() Options {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.options
}

// The caller holds the lock.
func (d *Driver) volume(id string) (*Volume, error) {
	v := d.volumes[id]
	if v == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("no volume %q", id))
	}
	return v, nil
}

func (d *Driver) path(id string) string { return filepath.Join(d.options.Dir, id) }

func (d *Driver) bind(ctx context.Context, source, target string, options []string) error {
	mounted, err := d.mounter.IsMountPoint(ctx, target)
	if err != nil && !errors.Is(err, os.ErrNotExist) || mounted && !d.has(StacksMounts) {
		return err
	}
	return d.mounter.Mount(ctx, mount.Request{Source: source, Target: target, Options: append([]string{"bind", "nosuid", "nodev"}, options...)})
}

func (d *Driver) unmount(ctx context.Context, path string) error {
	err := d.mounter.Unmount(ctx, path, mount.UnmountOptions{})
	if d.has(UnmountsLazily) && errors.Is(err, unix.EBUSY) {
		return detachMount(path)
	}
	if errors.Is(err, unix.EBUSY) {
		return status.Error(codes.Internal, "busy")
	}
	if errors.Is(err, mount.ErrNotMounted) {
		return nil
	}
	return err
}
