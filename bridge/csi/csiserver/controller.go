package csiserver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// controller is the service that makes, attaches and expands volumes, and makes snapshots of them.
type controller struct {
	unserved
	*resolved
	*snapshots

	locks       *locks
	state       *stateRecords
	volumes     *volumes
	attachments *attachments
}

// unserved answers to the calls that neither controller nor snapshots has.
type unserved struct {
	csi.UnimplementedControllerServer
}

// ControllerGetCapabilities says which calls are served.
func (c *controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	var all []*csi.ControllerServiceCapability
	add := func(does bool, types ...csi.ControllerServiceCapability_RPC_Type) {
		for _, t := range types {
			if does {
				all = append(all, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
					Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
				}})
			}
		}
	}
	add(c.makes(), csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	add(c.makes() && c.can.Has(volume.CapClone), csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	add(c.makes() && c.can.Has(volume.CapSnapshot),
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
	add(c.makes() && c.can.Has(volume.CapListSnapshots), csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	add(c.attachesByController(),
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	add(c.attachesByController() && c.makes(), csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	add(c.can.Has(volume.CapExpand), csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	add(c.makes() && c.can.Has(volume.CapModify), csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	add(c.makes() && c.can.Has(volume.CapCapacity), csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	add(true, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: all}, nil
}

// unimplemented is the answer to a call that the capabilities do not name.
func unimplemented(call string) error {
	return status.Errorf(codes.Unimplemented, "%s: the plugin cannot do that", call)
}

// checkVolumeID refuses an id that is missing or that no volume can have.
func checkVolumeID(id string) error {
	return csispec.CheckID("volume_id", id, csispec.MaxString)
}

func noSuchVolume(id string) error {
	return status.Errorf(codes.NotFound, "there is no volume %s", volume.Quote(id))
}

// specOfVolume returns a volume as the plugin sees it when no node uses it.
func (s *volumes) specOfVolume(v volumeRecord) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(v.PV, false)
}

// usersOf names what still has the volume; empty when nothing is on record.
func (s *volumes) usersOf(id string) string {
	if all := s.state.attachmentsOf(id); len(all) > 0 {
		return fmt.Sprintf("it is attached to node %q", all[0].Node)
	}
	if s.runtime == nil {
		return ""
	}
	if all := s.runtime.publicationsOf(id); len(all) > 0 {
		return fmt.Sprintf("it is published at %q", all[0].Target)
	}
	if st, ok := s.runtime.stagings.Get(id); ok {
		return fmt.Sprintf("it is staged at %q", st.Path)
	}
	return ""
}

// ValidateVolumeCapabilities confirms what the plugin can serve of a volume that was made.
func (c *controller) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	v, ok := c.state.byID(r.GetVolumeId())
	if !ok || v.Step != made {
		return nil, noSuchVolume(r.GetVolumeId())
	}
	why, err := c.whyNot(v, r)
	if err != nil {
		return nil, err
	}
	if why != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// whyNot says what of a request does not hold for a volume; empty when all does.
func (c *controller) whyNot(v volumeRecord, r *csi.ValidateVolumeCapabilitiesRequest) (string, error) {
	for _, wanted := range r.GetVolumeCapabilities() {
		checked, err := capabilityOf(wanted)
		if err != nil {
			return "", err
		}
		if why := c.whyUnfit(v, checked); why != "" {
			return why, nil
		}
	}
	if len(r.GetParameters()) > 0 && parametersDigest(r.GetParameters()) != v.Parameters {
		return "the volume was made with other parameters", nil
	}
	return "", nil
}

// whyUnfit says why a volume cannot be used so; empty when it can.
func (s *resolved) whyUnfit(v volumeRecord, wanted capability) string {
	if why := s.unsupported(wanted); why != "" {
		return why
	}
	if block := *originOf(v.PV).Block; block != wanted.Block {
		return fmt.Sprintf("the volume was made with volumeMode Block=%t", block)
	}
	if source := v.PV.Spec.CSI; source != nil && wanted.FSType != "" && source.FSType != "" && source.FSType != wanted.FSType {
		return fmt.Sprintf("the volume was made with filesystem %s", source.FSType)
	}
	return ""
}
