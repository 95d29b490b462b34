package csiserver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// GetCapacity returns the plugin's free capacity. It is zero for a topology without this node, and for capabilities
// that no volume of the plugin has.
func (c *controller) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	plugin, ok := c.plugin.(volume.VolumePluginWithCapacity)
	if !ok || !c.can.Has(volume.CapCapacity) {
		return nil, unimplemented("GetCapacity")
	}
	fits, err := c.servesAll(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if !fits || len(c.options.Topology) > 0 && r.GetAccessibleTopology() != nil && !c.isHere(r.GetAccessibleTopology()) {
		return &csi.GetCapacityResponse{}, nil
	}
	parameters := withoutKubernetes(r.GetParameters())
	for _, each := range r.GetVolumeCapabilities() { // as for a new volume: a filesystem has its own smallest size
		parameters = withFSType(parameters, each.GetMount().GetFsType())
	}
	capacity, err := plugin.GetCapacity(ctx, volume.CapacityOptions{Parameters: parameters})
	if err != nil {
		return nil, err
	}
	if capacity.Available == nil { // The response has no value for unknown, and zero would be wrong.
		return nil, status.Error(codes.Unavailable, "the plugin does not know how much is available")
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: capacity.Available.Value(),
		MaximumVolumeSize: sizeOf(capacity.MaximumVolumeSize), MinimumVolumeSize: sizeOf(capacity.MinimumVolumeSize),
	}, nil
}

// servesAll reports whether the plugin can serve volumes with all of these capabilities. It ignores the access mode
// UNKNOWN: a client that asks for the capacity of a class has no volume, and so no access mode.
func (c *controller) servesAll(capabilities []*csi.VolumeCapability) (bool, error) {
	for _, each := range capabilities {
		if each.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
			continue
		}
		wanted, err := capabilityOf(each)
		if err != nil {
			return false, err
		}
		if c.unsupported(wanted) != "" {
			return false, nil
		}
	}
	return true, nil
}

// sizeOf returns a size in the type of the specification; nil is unknown.
func sizeOf(q *resource.Quantity) *wrapperspb.Int64Value {
	if q == nil {
		return nil
	}
	return wrapperspb.Int64(q.Value())
}
