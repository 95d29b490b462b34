package csiserver

import (
	"context"
	"maps"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/volume"
)

// node is the service that gives volumes to workloads of this node.
type node struct {
	csi.UnimplementedNodeServer
	*resolved

	locks        *locks
	runtime      *runtimeRecords
	stagings     *stager
	publications *publisher
	binds        *binder
}

// NodeGetCapabilities says which calls are served.
func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var all []*csi.NodeServiceCapability
	add := func(does bool, types ...csi.NodeServiceCapability_RPC_Type) {
		for _, t := range types {
			if does {
				all = append(all, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
					Rpc: &csi.NodeServiceCapability_RPC{Type: t},
				}})
			}
		}
	}
	add(n.stages(), csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	add(n.can.Has(volume.CapNodeExpand), csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	add(true, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	return &csi.NodeGetCapabilitiesResponse{Capabilities: all}, nil
}

// NodeGetInfo says which node this is, and how many volumes it can have.
func (n *node) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	response := &csi.NodeGetInfoResponse{NodeId: string(n.options.NodeName)}
	if len(n.options.Topology) > 0 {
		response.AccessibleTopology = &csi.Topology{Segments: maps.Clone(n.options.Topology)}
	}
	plugin, ok := n.plugin.(volume.VolumePluginWithAttachLimits)
	if !ok || !n.can.Has(volume.CapAttachLimits) {
		return response, nil
	}
	limits, err := plugin.GetVolumeLimits(ctx)
	if err != nil {
		return nil, err
	}
	for _, limit := range limits { // of several kinds of volumes the least, since CSI knows one
		if response.MaxVolumesPerNode == 0 || limit < response.MaxVolumesPerNode {
			response.MaxVolumesPerNode = limit
		}
	}
	return response, nil
}

// checkPath refuses what is no path of the host that a caller may mean.
func checkPath(field, path string) error {
	switch {
	case path == "":
		return status.Errorf(codes.InvalidArgument, "%s is missing", field)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return status.Errorf(codes.InvalidArgument, "%s %s: give a clean absolute path", field, volume.Quote(path))
	}
	return nil
}
