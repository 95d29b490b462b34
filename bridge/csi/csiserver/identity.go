package csiserver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volumekit/volumekit/volume"
)

// identity is the service by which a caller learns what the driver is.
type identity struct {
	csi.UnimplementedIdentityServer
	*resolved
}

// GetPluginInfo returns the driver's name and version.
func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name, VendorVersion: i.options.Version}, nil
}

// Probe says that the driver is ready: it listens only when it is.
func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities says which services there are.
func (i *identity) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	var all []*csi.PluginCapability
	service := func(does bool, service csi.PluginCapability_Service_Type) {
		if does {
			all = append(all, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
				Service: &csi.PluginCapability_Service{Type: service},
			}})
		}
	}
	service(i.options.hasController(), csi.PluginCapability_Service_CONTROLLER_SERVICE)
	service(i.options.hasController() && i.can.Has(volume.CapGroupSnapshot), csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	service(len(i.options.Topology) > 0, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	if i.can.Has(volume.CapExpand) || i.can.Has(volume.CapNodeExpand) {
		all = append(all, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
		}})
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: all}, nil
}
