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
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/mount"
)

// Name is the name of the driver unless Options say otherwise.
const Name = "fake.csi.example.com"

// Parameter is the only class parameter of the driver.
const Parameter = "colour"

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

// Fault is a planned fault of a call. The zero value is a call without a fault.
type Fault struct {
	// Code and Message are the error of the answer. With codes.OK the answer is that of the call.
	Code    codes.Code
	Message string
	// After makes the call take effect before it fails. A held call takes effect after it is released.
	After bool
	// Hold blocks the call until the channel is closed, even if the call's context ends.
	Hold <-chan struct{}
	// Change changes the answer of a successful call.
	Change func(answer proto.Message)
	// Edit changes the request before the driver handles it.
	Edit func(request proto.Message)
	// NoEffect makes the call report success without an effect.
	NoEffect bool
	// Always keeps the fault for the calls that follow.
	Always bool
}

// Call is a call that the driver received.
type Call struct {
	// Method is its name, such as "NodePublishVolume".
	Method string
	// Request is the request of the call.
	Request proto.Message
}

// Volume is one volume of the driver.
type Volume struct {
	// ID and Name identify the volume.
	ID, Name string
	// Size is its capacity.
	Size int64
	// Attributes are its mutable parameters.
	Attributes map[string]string
	// Nodes are the nodes to which it is published.
	Nodes []string
	// Staged and Published are its paths.
	Staged, Published []string
	// Inline says that NodePublishVolume created it for a pod.
	Inline bool
}

// Driver is a fake CSI driver. Its methods may be called from several goroutines at once.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer

	mounter mount.Interface

	mu      sync.Mutex
	options Options
	faults  map[string][]Fault
	calls   []Call
	volumes map[string]*Volume
	// snapshots are by id.
	snapshots map[string]*csi.Snapshot
	groups    map[string]*csi.VolumeGroupSnapshot
}

// New returns a driver without volumes. It does nothing.
func New(options Options) *Driver {
	options = options.complete()
	return &Driver{
		mounter: options.Mounter, options: options, faults: map[string][]Fault{}, volumes: map[string]*Volume{},
		snapshots: map[string]*csi.Snapshot{}, groups: map[string]*csi.VolumeGroupSnapshot{},
	}
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

// Plan plans a fault of a method, after its faults planned before.
func (d *Driver) Plan(method string, faults ...Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[method] = append(d.faults[method], faults...)
}

// Heal removes all planned faults.
func (d *Driver) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.faults)
}

// Become changes the driver's own description, as an update of the driver does.
func (d *Driver) Become(change func(*Options)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.options)
}

// Calls returns the called methods in order, without those that only read.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var methods []string
	for _, c := range d.calls {
		if !isQuestion(c.Request) {
			methods = append(methods, c.Method)
		}
	}
	return methods
}

// Total returns the number of calls, with those that only read.
func (d *Driver) Total() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls)
}

// Last returns the request of the last call of a method; nil if there was none.
func (d *Driver) Last(method string) proto.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range slices.Backward(d.calls) {
		if c.Method == method {
			return c.Request
		}
	}
	return nil
}

// Count returns the number of calls of a method.
func (d *Driver) Count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	count := 0
	for _, c := range d.calls {
		if c.Method == method {
			count++
		}
	}
	return count
}

// Volumes returns copies of the volumes, sorted by id.
func (d *Driver) Volumes() []Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Volume
	for _, v := range d.volumes {
		c := *v
		c.Nodes, c.Staged, c.Published = slices.Clone(v.Nodes), slices.Clone(v.Staged), slices.Clone(v.Published)
		all = append(all, c)
	}
	// The order must not change, or a volume could be on no page of a list.
	slices.SortFunc(all, func(a, b Volume) int { return cmp.Or(len(a.ID)-len(b.ID), cmp.Compare(a.ID, b.ID)) })
	return all
}

func isQuestion(request proto.Message) bool {
	switch request.(type) {
	case *csi.CreateVolumeRequest, *csi.DeleteVolumeRequest, *csi.ControllerPublishVolumeRequest, *csi.ControllerUnpublishVolumeRequest,
		*csi.ControllerExpandVolumeRequest, *csi.NodeStageVolumeRequest, *csi.NodeUnstageVolumeRequest, *csi.NodePublishVolumeRequest,
		*csi.NodeUnpublishVolumeRequest, *csi.NodeExpandVolumeRequest, *csi.CreateSnapshotRequest, *csi.DeleteSnapshotRequest,
		*csi.CreateVolumeGroupSnapshotRequest, *csi.DeleteVolumeGroupSnapshotRequest:
		return false
	}
	return true
}

// intercept applies the planned fault of a call.
func (d *Driver) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := filepath.Base(info.FullMethod)
	fault := d.begin(method, request)
	if fault.Hold != nil {
		<-fault.Hold
	}
	if fault.Code != codes.OK && !fault.After {
		return nil, status.Error(fault.Code, fault.Message)
	}
	answer, err := d.carryOut(ctx, request, fault, handle)
	if err != nil {
		return nil, err
	}
	if fault.Code != codes.OK {
		return nil, status.Error(fault.Code, fault.Message)
	}
	if message, ok := answer.(proto.Message); ok && fault.Change != nil {
		fault.Change(message)
	}
	return answer, nil
}

func (d *Driver) begin(method string, request any) Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if message, ok := request.(proto.Message); ok {
		d.calls = append(d.calls, Call{Method: method, Request: message})
	}
	planned := d.faults[method]
	if len(planned) == 0 {
		return Fault{}
	}
	if !planned[0].Always {
		d.faults[method] = planned[1:]
	}
	return planned[0]
}

func (d *Driver) carryOut(ctx context.Context, request any, fault Fault, handle grpc.UnaryHandler) (any, error) {
	if fault.NoEffect {
		return emptyAnswer(request)
	}
	if message, ok := request.(proto.Message); ok && fault.Edit != nil {
		message = proto.Clone(message)
		fault.Edit(message)
		request = message
	}
	return handle(context.WithoutCancel(ctx), request) // A driver completes the call even if its caller has left.
}

func emptyAnswer(request any) (any, error) {
	switch request.(type) {
	case *csi.NodeStageVolumeRequest:
		return &csi.NodeStageVolumeResponse{}, nil
	case *csi.NodeUnstageVolumeRequest:
		return &csi.NodeUnstageVolumeResponse{}, nil
	case *csi.NodePublishVolumeRequest:
		return &csi.NodePublishVolumeResponse{}, nil
	case *csi.NodeUnpublishVolumeRequest:
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	return nil, status.Error(codes.Internal, "the fake has no empty answer for this")
}
