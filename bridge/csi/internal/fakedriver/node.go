package fakedriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/mount"
)

// node is the driver's node service.
type node struct {
	csi.UnimplementedNodeServer
	*storage
}

// NodeGetCapabilities implements csi.NodeServer.
func (n node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, rpc := range n.current().Node {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: rpc},
		}})
	}
	return answer, nil
}

// NodeGetInfo implements csi.NodeServer.
func (n node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	o := n.current()
	answer := &csi.NodeGetInfoResponse{NodeId: o.NodeID, MaxVolumesPerNode: o.MaxVolumes}
	if o.Topology != nil {
		answer.AccessibleTopology = &csi.Topology{Segments: o.Topology}
	}
	return answer, nil
}

// NodeExpandVolume implements csi.NodeServer. It returns the size of the filesystem of Options.Dir.
func (n node) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

// NodeStageVolume implements csi.NodeServer: a bind mount of the volume's directory.
func (n node) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.volume(r.GetVolumeId())
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
		if err := n.bind(ctx, n.path(v.ID), r.GetStagingTargetPath(), nil); err != nil {
			return nil, err
		}
	}
	v.Staged = append(v.Staged, r.GetStagingTargetPath())
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer.
func (n node) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.unmount(ctx, r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if v := n.volumes[r.GetVolumeId()]; v != nil {
		v.Staged = slices.DeleteFunc(v.Staged, func(path string) bool { return path == r.GetStagingTargetPath() })
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer: a bind mount of what is staged, and of a file for a block device.
func (n node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.volumeFor(r)
	if err != nil {
		return nil, err
	}
	if slices.Contains(v.Published, r.GetTargetPath()) && !n.has(StacksMounts) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if n.has(NeverMounts) {
		v.Published = append(v.Published, r.GetTargetPath())
		return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.GetTargetPath(), 0o750)
	}
	source, err := n.source(ctx, v)
	if err != nil {
		return nil, err
	}
	if !v.Inline && slices.Contains(n.options.Node, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		if !slices.Contains(v.Staged, r.GetStagingTargetPath()) {
			return nil, status.Error(codes.FailedPrecondition, "not staged")
		}
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		source = filepath.Join(n.options.Dir, v.ID+deviceSuffix)
		file, err := os.OpenFile(source, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	var options []string
	if r.GetReadonly() && !n.has(IgnoresReadOnly) {
		options = append(options, "ro")
	}
	if err := n.bind(ctx, source, r.GetTargetPath(), options); err != nil {
		return nil, err
	}
	v.Published = append(v.Published, r.GetTargetPath())
	return &csi.NodePublishVolumeResponse{}, nil
}

// volumeFor returns the volume to publish. It creates an inline volume first. The caller holds the lock.
func (n node) volumeFor(r *csi.NodePublishVolumeRequest) (*Volume, error) {
	id := r.GetVolumeId()
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" || n.volumes[id] != nil {
		return n.volume(id)
	}
	n.volumes[id] = &Volume{ID: id, Inline: true, Size: 1 << 20}
	return n.volumes[id], os.Mkdir(n.path(id), 0o755)
}

// source returns the directory to publish, with the effect of the bugs. The caller holds the lock.
func (n node) source(ctx context.Context, v *Volume) (string, error) {
	if n.options.Memory {
		return n.path(v.ID), n.mountMemory(ctx, n.path(v.ID))
	}
	switch n.options.Bug {
	case SharesOneDirectory:
		return n.path("shared"), os.MkdirAll(n.path("shared"), 0o755)
	case WipesAtPublish:
		return n.path(v.ID), n.empty(v.ID)
	default:
		return n.path(v.ID), nil
	}
}

// mountMemory mounts the tmpfs of a volume unless it is mounted. The caller holds the lock. With [NoLock], mountMemory
// releases it meanwhile.
func (n node) mountMemory(ctx context.Context, path string) error {
	if n.has(NoLock) {
		n.mu.Unlock()
		defer n.mu.Lock()
	}
	mounted, err := n.mounter.IsMountPoint(ctx, path)
	if mounted || err != nil {
		return err
	}
	return n.mounter.Mount(ctx, mount.Request{Source: "volume", Target: path, FSType: "tmpfs", Options: []string{"nosuid", "nodev"}})
}

func (n node) bind(ctx context.Context, source, target string, options []string) error {
	mounted, err := n.mounter.IsMountPoint(ctx, target)
	if err != nil && !errors.Is(err, os.ErrNotExist) || mounted && !n.has(StacksMounts) {
		return err
	}
	return n.mounter.Mount(ctx, mount.Request{Source: source, Target: target, Options: append([]string{"bind", "nosuid", "nodev"}, options...)})
}

// NodeUnpublishVolume implements csi.NodeServer.
func (n node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.unmount(ctx, r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := n.mounter.RemoveTarget(ctx, r.GetTargetPath()); err != nil {
		return nil, err
	}
	if v := n.volumes[r.GetVolumeId()]; v != nil {
		v.Published = slices.DeleteFunc(v.Published, func(path string) bool { return path == r.GetTargetPath() })
		if v.Inline && len(v.Published) == 0 {
			return &csi.NodeUnpublishVolumeResponse{}, n.erase(v.ID)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (n node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, err := n.volume(r.GetVolumeId())
	if err != nil || !slices.Contains(v.Published, r.GetVolumePath()) {
		return nil, status.Error(codes.NotFound, "not there")
	}
	if n.has(MeasuresNothing) {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES}, {Unit: csi.VolumeUsage_INODES}}}, nil
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: v.Size, Used: 4096, Available: v.Size - 4096},
		{Unit: csi.VolumeUsage_INODES, Total: 100, Used: 1, Available: 99},
	}}, nil
}

// NodeGetVolumeHealth implements csi.NodeServer: all volumes are well.
func (n node) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: r.GetVolumeId()}}, nil
}
