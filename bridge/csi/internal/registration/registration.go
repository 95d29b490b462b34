// Package registration implements the protocol with which a driver's registrar registers the driver with kubelet: the
// service pluginregistration.Registration on a socket in a directory that kubelet watches. It encodes the four messages
// itself, so it needs no further dependency.
package registration

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

const service = "pluginregistration.Registration"

// CSIPlugin is the type of a registration of a CSI driver.
const CSIPlugin = "CSIPlugin"

// Info is a registrar's description of its driver.
type Info struct {
	// Type is [CSIPlugin] for a CSI driver.
	Type string
	// Name is the driver's.
	Name string
	// Endpoint is the path of the driver's socket; if it is empty, the driver serves the registrar's socket.
	Endpoint string
	// Versions are the driver's versions of CSI.
	Versions []string
}

// Status is the result of a registration.
type Status struct {
	// Registered is true if the driver is used.
	Registered bool
	// Error is the reason if it is not used.
	Error string
}

type empty struct{}

// GetInfo reads a registrar's description.
func GetInfo(ctx context.Context, conn grpc.ClientConnInterface) (Info, error) {
	var info Info
	err := conn.Invoke(ctx, "/"+service+"/GetInfo", &empty{}, &info, grpc.ForceCodec(codec{}))
	return info, err
}

// Notify reports the result of the registration to a registrar.
func Notify(ctx context.Context, conn grpc.ClientConnInterface, s Status) error {
	return conn.Invoke(ctx, "/"+service+"/NotifyRegistrationStatus", &s, &empty{}, grpc.ForceCodec(codec{}))
}

// Registrar is the registrar's side, for tests.
type Registrar interface {
	// GetInfo describes the driver.
	GetInfo(ctx context.Context) (Info, error)
	// Notify receives the result of the registration.
	Notify(ctx context.Context, s Status) error
}

// NewServer returns a server of the registrar.
func NewServer(r Registrar) *grpc.Server {
	server := grpc.NewServer(grpc.ForceServerCodec(codec{}))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*Registrar)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "GetInfo", Handler: getInfo}, {MethodName: "NotifyRegistrationStatus", Handler: notify}},
	}, r)
	return server
}

func getInfo(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // It is gRPC's.
	if err := decode(&empty{}); err != nil {
		return nil, err
	}
	info, err := srv.(Registrar).GetInfo(ctx) //nolint:forcetypeassert // It was registered so.
	return &info, err
}

func notify(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // It is gRPC's.
	var s Status
	if err := decode(&s); err != nil {
		return nil, err
	}
	return &empty{}, srv.(Registrar).Notify(ctx, s) //nolint:forcetypeassert // It was registered so.
}

// codec encodes the messages of the protocol as protocol buffers.
type codec struct{}

// Name is that of protocol buffers.
func (codec) Name() string { return "proto" }

// Marshal encodes one of the messages.
func (codec) Marshal(message any) ([]byte, error) {
	switch m := message.(type) {
	case *empty:
		return nil, nil
	case *Info:
		var b []byte
		b = appendString(b, 1, m.Type)
		b = appendString(b, 2, m.Name)
		b = appendString(b, 3, m.Endpoint)
		for _, version := range m.Versions {
			b = appendString(b, 4, version)
		}
		return b, nil
	case *Status:
		var b []byte
		if m.Registered {
			b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 1)
		}
		return appendString(b, 2, m.Error), nil
	}
	return nil, fmt.Errorf("%T is no message of %s", message, service)
}

func appendString(b []byte, field protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), value)
}

// Unmarshal decodes one of the messages. It ignores fields of a newer protocol.
func (codec) Unmarshal(data []byte, message any) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		n = protowire.ConsumeFieldValue(number, kind, data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		take(message, number, kind, data[:n])
		data = data[n:]
	}
	return nil
}

// take sets a field of the message, if the message has the field. The value was parsed before.
func take(message any, number protowire.Number, kind protowire.Type, value []byte) {
	switch m := message.(type) {
	case *Info:
		if kind != protowire.BytesType {
			return
		}
		text, _ := protowire.ConsumeString(value)
		switch int(number) {
		case 1:
			m.Type = text
		case 2:
			m.Name = text
		case 3:
			m.Endpoint = text
		case 4:
			m.Versions = append(m.Versions, text)
		}
	case *Status:
		switch {
		case number == 1 && kind == protowire.VarintType:
			set, _ := protowire.ConsumeVarint(value)
			m.Registered = set != 0
		case number == 2 && kind == protowire.BytesType:
			m.Error, _ = protowire.ConsumeString(value)
		}
	}
}
