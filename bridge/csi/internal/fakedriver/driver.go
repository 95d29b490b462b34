// Package fakedriver is a CSI driver for tests. It serves a socket and keeps volumes as directories. It stages and
// publishes them with bind mounts. Tests plan its faults.
//
//	d := fakedriver.New(fakedriver.Options{Dir: dir})
//	stop, err := d.Serve(socket)
//	d.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.DeadlineExceeded, After: true})
//
// Its volumes and its planned faults outlive Serve, as a driver's storage outlives its process.
package fakedriver

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/volumekit/volumekit/mount"
)

// Name is the name of the driver unless Options say otherwise.
const Name = "fake.csi.example.com"

// Parameter is the only class parameter of the driver.
const Parameter = "colour"

// Attribute is the only mutable parameter of the driver.
const Attribute = "tier"

// deviceSuffix ends the name of the file that substitutes for a volume's device.
const deviceSuffix = ".device"

// Options configures the driver. Only Dir is required. Without other options, the driver supports everything.
type Options struct {
	// Dir is the directory of the volumes.
	Dir string
	// Name is the driver's name.
	Name string
	// NodeID is the driver's id of this node; empty means "fake-node".
	NodeID string
	// Services are the plugin's capabilities; nil means the controller service.
	Services []csi.PluginCapability_Service_Type
	// Controller and Node are the calls that it supports; nil means all that are implemented here.
	Controller []csi.ControllerServiceCapability_RPC_Type
	Node       []csi.NodeServiceCapability_RPC_Type
	// Topology is the topology of this node.
	Topology map[string]string
	// MaxVolumes is the attach limit of a node; 0 means no limit.
	MaxVolumes int64
	// Memory makes each volume a tmpfs, which the driver mounts at the first NodePublishVolume.
	Memory bool
	// Mounter makes the driver's mounts; nil means the kernel's.
	Mounter mount.Interface
	// Group are the calls of its group controller service, if Services has that service.
	Group []csi.GroupControllerServiceCapability_RPC_Type
	// NeverReady keeps every snapshot not ready to use.
	NeverReady bool
	// Bug is the bug that the driver has in every call.
	Bug Bug
}

// WithSnapshots adds the calls for snapshots and groups to the driver's calls.
func (o Options) WithSnapshots() Options {
	o = o.complete()
	o.Controller = append(slices.Clone(o.Controller), csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
	o.Services = append(slices.Clone(o.Services), csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	o.Group = []csi.GroupControllerServiceCapability_RPC_Type{csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}
	return o
}

// WithoutGroups removes the group controller service: the fake makes a group while others can write to its volumes.
func (o Options) WithoutGroups() Options {
	o.Services, o.Group = []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}, nil
	return o
}

// complete fills in the defaults.
func (o Options) complete() Options {
	if o.Name == "" {
		o.Name = Name
	}
	if o.NodeID == "" {
		o.NodeID = "fake-node"
	}
	if o.Services == nil {
		o.Services = []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	}
	if o.Controller == nil {
		o.Controller = []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
			csi.ControllerServiceCapability_RPC_GET_VOLUME,
			csi.ControllerServiceCapability_RPC_GET_CAPACITY,
			csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
			csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
			csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		}
	}
	if o.Node == nil {
		o.Node = []csi.NodeServiceCapability_RPC_Type{
			csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
			csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
			csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
			csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		}
	}
	if o.Mounter == nil {
		o.Mounter = mount.New(mount.Options{})
	}
	return o
}

// Driver is a fake CSI driver. Its methods may be called from several goroutines at once. It serves the services of
// the specification over one storage. The interceptor gets each call first.
type Driver struct {
	*interceptor
	*storage
	identity
	controller
	groupController
	node
}

// New returns a driver without volumes. It does nothing.
func New(options Options) *Driver {
	options = options.complete()
	s := &storage{
		mounter: options.Mounter, options: options, volumes: map[string]*Volume{},
		snapshots: map[string]*csi.Snapshot{}, groups: map[string]*csi.VolumeGroupSnapshot{},
	}
	return &Driver{
		interceptor: &interceptor{faults: map[string][]Fault{}}, storage: s,
		identity: identity{storage: s}, controller: controller{storage: s}, groupController: groupController{storage: s}, node: node{storage: s},
	}
}

// Serve listens at socket and answers calls. Only the owner of the socket may write to it. stop ends every call, and
// returns when nothing runs but held calls.
func (d *Driver) Serve(socket string) (stop func(), err error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket) //nolint:noctx // It returns at once.
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o700); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept), grpc.MaxSendMsgSize(1<<30))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterGroupControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return func() { server.Stop(); serving.Wait() }, nil
}
