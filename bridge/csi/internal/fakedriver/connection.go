package fakedriver

import (
	"context"
	"path"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Connection calls a driver without a socket, in the goroutine of the caller and with its context. Requests and answers are copied, as a
// socket does.
type Connection struct{ driver *Driver }

// Connection returns a connection that is always open.
func (d *Driver) Connection() Connection { return Connection{d} }

// Invoke implements grpc.ClientConnInterface.
func (c Connection) Invoke(ctx context.Context, method string, request, answer any, _ ...grpc.CallOption) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	call := callNamed(path.Base(method))
	if call == nil {
		return status.Errorf(codes.Unimplemented, "method %s is not known", method)
	}
	decode := func(into any) error {
		return merge(into, request)
	}
	got, err := call(c.driver, ctx, decode, c.driver.intercept)
	if err != nil {
		return status.Convert(err).Err()
	}
	return merge(answer, got)
}

// merge copies a message, as a socket does.
func merge(into, from any) error {
	to, ok := into.(proto.Message)
	message, both := from.(proto.Message)
	if !ok || !both {
		return status.Errorf(codes.Internal, "%T and %T are no messages", into, from)
	}
	proto.Merge(to, message)
	return nil
}

// callNamed returns the handler of a method; nil if there is none.
func callNamed(name string) grpc.MethodHandler {
	for _, service := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc, csi.Node_ServiceDesc} {
		for _, m := range service.Methods {
			if m.MethodName == name {
				return m.Handler
			}
		}
	}
	return nil
}

// NewStream implements grpc.ClientConnInterface: no call of the driver is a stream.
func (Connection) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "the driver has no streams")
}

// GetState reports that the connection is open.
func (Connection) GetState() connectivity.State { return connectivity.Ready }

// Close does nothing.
func (Connection) Close() error { return nil }
