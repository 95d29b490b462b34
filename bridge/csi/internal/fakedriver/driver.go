// Package fakedriver is a CSI driver for tests: it serves a socket, keeps volumes as directories, stages and publishes them by bind
// mounts, and does wrong what it is told to do wrong.
//
//	d := fakedriver.New(fakedriver.Options{Dir: dir})
//	stop, err := d.Serve(socket)
//	d.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.DeadlineExceeded, After: true})
//
// Its volumes and its word about them outlive Serve, as a driver's storage outlives its process.
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

// Parameter is the one parameter of a class that the driver knows.
const Parameter = "colour"

// deviceSuffix ends the name of the file that stands for a volume's device.
const deviceSuffix = ".device"

// Options says what driver it is. The zero value of all but Dir is a driver that can do everything.
type Options struct {
	// Dir is where the volumes are.
	Dir string
	// Name is the driver's name.
	Name string
	// NodeID is what it calls this node; empty means "fake-node".
	NodeID string
	// Services are the plugin's capabilities; nil means the controller service.
	Services []csi.PluginCapability_Service_Type
	// Controller and Node are the calls that it has; nil means all that are here.
	Controller []csi.ControllerServiceCapability_RPC_Type
	Node       []csi.NodeServiceCapability_RPC_Type
	// Topology is where this node is.
	Topology map[string]string
	// MaxVolumes is how many volumes a node can have; 0 means that there is no limit.
	MaxVolumes int64
	// Memory says that each volume is a tmpfs, which the driver mounts when the volume is first published.
	Memory bool
	// Mounter is what it mounts with; nil means the kernel's.
	Mounter mount.Interface
	// Group are the calls of its group controller service, which is there if Services say so.
	Group []csi.GroupControllerServiceCapability_RPC_Type
	// NeverReady says that no snapshot becomes ready to use.
	NeverReady bool
	// Bug is what it always does wrong.
	Bug Bug
}

// WithSnapshots adds the calls for snapshots and groups to those that the driver has.
func (o Options) WithSnapshots() Options {
	o = o.complete()
	o.Controller = append(slices.Clone(o.Controller), csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
	o.Services = append(slices.Clone(o.Services), csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	o.Group = []csi.GroupControllerServiceCapability_RPC_Type{csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}
	return o
}

// WithoutGroups takes the group controller service away: nothing stops those who write while the fake makes a group.
func (o Options) WithoutGroups() Options {
	o.Services, o.Group = []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}, nil
	return o
}

// Fault is how a call goes wrong. The zero value is a call that goes well.
type Fault struct {
	// Code and Message are the answer; codes.OK means that of the call.
	Code    codes.Code
	Message string
	// After has the call take its effect before it fails. A call that is held takes its effect after it was let go.
	After bool
	// Hold keeps the call until it is closed, whatever becomes of its context.
	Hold <-chan struct{}
	// Change changes the answer of a call that went well.
	Change func(answer proto.Message)
	// Edit changes what the driver takes the request for.
	Edit func(request proto.Message)
	// NoEffect answers as if all was well and does nothing.
	NoEffect bool
	// Always keeps the fault for the calls that follow.
	Always bool
}

// Call is a call that came.
type Call struct {
	// Method is its name, such as "NodePublishVolume".
	Method string
	// Request is what was asked for.
	Request proto.Message
}

// Volume is one volume of the driver.
type Volume struct {
	// ID and Name are what it is called.
	ID, Name string
	// Size is its capacity.
	Size int64
	// Attributes are those that it was given by mutable parameters.
	Attributes map[string]string
	// Nodes are those that it is published to.
	Nodes []string
	// Staged and Published are the paths at which it is.
	Staged, Published []string
	// Inline says that it was made for a pod when it was published.
	Inline bool
}

// Driver is the driver. Its methods may be called from several goroutines.
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

// complete returns the options with the defaults.
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

// Serve listens at socket, which only its owner may write to, and answers until stop is called, which ends every call and returns
// when nothing runs any more but calls that are held.
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

// Plan has the next call of a method, after those that are planned, go wrong.
func (d *Driver) Plan(method string, faults ...Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[method] = append(d.faults[method], faults...)
}

// Heal takes back all that is planned.
func (d *Driver) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.faults)
}

// Become changes what the driver says of itself, as an update does.
func (d *Driver) Become(change func(*Options)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.options)
}

// Calls returns the methods that were called, in their order, without those that only ask.
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

// Total returns how many calls came, with those that only ask.
func (d *Driver) Total() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls)
}

// Last returns the request of the last call of a method; nil when there was none.
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

// Count returns how often a method was called.
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

// Volumes returns copies of the volumes, in the order of their ids.
func (d *Driver) Volumes() []Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Volume
	for _, v := range d.volumes {
		c := *v
		c.Nodes, c.Staged, c.Published = slices.Clone(v.Nodes), slices.Clone(v.Staged), slices.Clone(v.Published)
		all = append(all, c)
	}
	// Always in the same order, or a volume could be on no page of a list.
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

// intercept lets a call go as it was planned.
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
	return handle(context.WithoutCancel(ctx), request) // A driver goes on when nobody waits any more.
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
