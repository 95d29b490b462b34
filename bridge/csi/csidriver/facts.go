package csidriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

type (
	pluginService  = csi.PluginCapability_Service_Type
	controllerCall = csi.ControllerServiceCapability_RPC_Type
	nodeCall       = csi.NodeServiceCapability_RPC_Type
	groupCall      = csi.GroupControllerServiceCapability_RPC_Type
)

// facts are a driver's answers on one connection. All requests have succeeded: the plugin does not use a connection on
// which one has failed.
type facts struct {
	name, version string
	services      map[pluginService]bool
	expansion     map[csi.PluginCapability_VolumeExpansion_Type]bool
	controller    map[controllerCall]bool
	node          map[nodeCall]bool
	group         map[groupCall]bool
	// nodeID is the driver's id of this node; empty if the plugin does not use the node service.
	nodeID   string
	topology map[string]string
	// maxVolumes is how many volumes this node can have; 0 means that there is no limit.
	maxVolumes int64
}

// readFacts reads all facts from the driver.
func (s *session) readFacts(ctx context.Context) (facts, error) {
	f := facts{services: map[pluginService]bool{}, expansion: map[csi.PluginCapability_VolumeExpansion_Type]bool{}}
	if err := s.awaitReady(ctx); err != nil {
		return f, err
	}
	for _, read := range []func(context.Context, *facts) error{s.readName, s.readServices, s.readController, s.readGroup, s.readNode} {
		if err := read(ctx, &f); err != nil {
			return f, err
		}
	}
	return f, nil
}

// readyPause is the time between two calls of Probe while the driver starts.
const readyPause = 100 * time.Millisecond

// awaitReady returns when the driver is ready, or when Probe fails.
func (s *session) awaitReady(ctx context.Context) error {
	for {
		answer, err := call(ctx, s, "Probe", csi.NewIdentityClient(s.conn).Probe, &csi.ProbeRequest{})
		if err != nil {
			return err
		}
		if ready := answer.GetReady(); ready == nil || ready.GetValue() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the driver is still starting: %w", ctx.Err())
		case <-time.After(readyPause):
		}
	}
}

func (s *session) readName(ctx context.Context, f *facts) error {
	answer, err := call(ctx, s, "GetPluginInfo", csi.NewIdentityClient(s.conn).GetPluginInfo, &csi.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	f.name, f.version = answer.GetName(), answer.GetVendorVersion()
	if err := csispec.CheckDriverName(f.name); err != nil {
		return err
	}
	if s.options.Driver != "" && f.name != s.options.Driver {
		return fmt.Errorf("driver %q answers: give its own socket to each driver: %w", f.name, volume.ErrInvalid)
	}
	return nil
}

func (s *session) readServices(ctx context.Context, f *facts) error {
	answer, err := call(ctx, s, "GetPluginCapabilities", csi.NewIdentityClient(s.conn).GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range answer.GetCapabilities() {
		if service := c.GetService(); service != nil {
			f.services[service.GetType()] = true
		}
		if expansion := c.GetVolumeExpansion(); expansion != nil {
			f.expansion[expansion.GetType()] = true
		}
	}
	return nil
}

// readController reads the calls of the controller service. It fails if the driver announces the service and does not
// list its calls: the plugin must not conclude that a call is missing.
func (s *session) readController(ctx context.Context, f *facts) error {
	if !s.options.Services.Has(Controller) || !f.services[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := call(ctx, s, "ControllerGetCapabilities", csi.NewControllerClient(s.conn).ControllerGetCapabilities, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return explainServices(err, "Node")
	}
	f.controller = map[controllerCall]bool{}
	for _, c := range answer.GetCapabilities() {
		f.controller[c.GetRpc().GetType()] = true
	}
	return nil
}

// readGroup reads the calls of the group controller service. Its socket is that of the controller service.
func (s *session) readGroup(ctx context.Context, f *facts) error {
	if !s.options.Services.Has(Controller) || !f.services[csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := call(ctx, s, "GroupControllerGetCapabilities",
		csi.NewGroupControllerClient(s.conn).GroupControllerGetCapabilities, &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil {
		return explainServices(err, "Node")
	}
	f.group = map[groupCall]bool{}
	for _, c := range answer.GetCapabilities() {
		f.group[c.GetRpc().GetType()] = true
	}
	return nil
}

func (s *session) readNode(ctx context.Context, f *facts) error {
	if !s.options.Services.Has(Node) {
		return nil
	}
	answer, err := call(ctx, s, "NodeGetCapabilities", csi.NewNodeClient(s.conn).NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return explainServices(err, "Controller")
	}
	f.node = map[nodeCall]bool{}
	for _, c := range answer.GetCapabilities() {
		f.node[c.GetRpc().GetType()] = true
	}
	return s.readNodeInfo(ctx, f)
}

func (s *session) readNodeInfo(ctx context.Context, f *facts) error {
	answer, err := call(ctx, s, "NodeGetInfo", csi.NewNodeClient(s.conn).NodeGetInfo, &csi.NodeGetInfoRequest{})
	if isUnimplemented(err) {
		return nil // A driver that does not attach need not have it.
	}
	if err != nil {
		return err
	}
	f.nodeID, f.maxVolumes = answer.GetNodeId(), answer.GetMaxVolumesPerNode()
	f.topology = maps.Clone(answer.GetAccessibleTopology().GetSegments())
	if f.maxVolumes < 0 {
		return fmt.Errorf("NodeGetInfo: max_volumes_per_node is %d: %w", f.maxVolumes, volume.ErrInvalid)
	}
	return csispec.CheckID("node id", f.nodeID, csispec.MaxNodeID)
}

// explainServices says how to set Options.Services if the socket serves only one service.
func explainServices(err error, other string) error {
	if isUnimplemented(err) {
		return errors.Join(err, fmt.Errorf("the socket does not serve it: set Options.Services to %s", other))
	}
	return err
}
