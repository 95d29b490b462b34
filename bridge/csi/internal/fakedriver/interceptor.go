package fakedriver

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

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

// interceptor has the received calls, and the faults that are planned for the next ones. They outlive [Driver.Serve].
type interceptor struct {
	mu     sync.Mutex
	faults map[string][]Fault // by method
	calls  []Call
}

// Plan plans a fault of a method, after its faults planned before.
func (i *interceptor) Plan(method string, faults ...Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults[method] = append(i.faults[method], faults...)
}

// RemoveFaults removes all planned faults.
func (i *interceptor) RemoveFaults() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.faults)
}

// Calls returns the called methods in order, without those that only read.
func (i *interceptor) Calls() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var methods []string
	for _, c := range i.calls {
		if !onlyReads(c.Request) {
			methods = append(methods, c.Method)
		}
	}
	return methods
}

// Total returns the number of calls, with those that only read.
func (i *interceptor) Total() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.calls)
}

// Last returns the request of the last call of a method; nil if there was none.
func (i *interceptor) Last(method string) proto.Message {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range slices.Backward(i.calls) {
		if c.Method == method {
			return c.Request
		}
	}
	return nil
}

// Count returns the number of calls of a method.
func (i *interceptor) Count(method string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	count := 0
	for _, c := range i.calls {
		if c.Method == method {
			count++
		}
	}
	return count
}

func onlyReads(request proto.Message) bool {
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
func (i *interceptor) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := filepath.Base(info.FullMethod)
	fault := i.record(method, request)
	if fault.Hold != nil {
		<-fault.Hold
	}
	if fault.Code != codes.OK && !fault.After {
		return nil, status.Error(fault.Code, fault.Message)
	}
	answer, err := runCall(ctx, request, fault, handle)
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

// record records a call, and returns its planned fault.
func (i *interceptor) record(method string, request any) Fault {
	i.mu.Lock()
	defer i.mu.Unlock()
	if message, ok := request.(proto.Message); ok {
		i.calls = append(i.calls, Call{Method: method, Request: message})
	}
	planned := i.faults[method]
	if len(planned) == 0 {
		return Fault{}
	}
	if !planned[0].Always {
		i.faults[method] = planned[1:]
	}
	return planned[0]
}

// runCall handles a call with the effect of its fault.
func runCall(ctx context.Context, request any, fault Fault, handle grpc.UnaryHandler) (any, error) {
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
