package registration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// messages returns the descriptors of the protocol's messages, with the fields of its proto file.
func messages(t *testing.T) protoreflect.MessageDescriptors {
	t.Helper()
	field := func(number int32, name string, kind descriptorpb.FieldDescriptorProto_Type, label descriptorpb.FieldDescriptorProto_Label) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: &label}
	}
	const (
		text = descriptorpb.FieldDescriptorProto_TYPE_STRING
		one  = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
	)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("registration.proto"), Syntax: new("proto3"), Package: new("pluginregistration"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("PluginInfo"), Field: []*descriptorpb.FieldDescriptorProto{
				field(1, "type", text, one), field(2, "name", text, one), field(3, "endpoint", text, one),
				field(4, "supported_versions", text, descriptorpb.FieldDescriptorProto_LABEL_REPEATED),
			}},
			{Name: new("RegistrationStatus"), Field: []*descriptorpb.FieldDescriptorProto{
				field(1, "plugin_registered", descriptorpb.FieldDescriptorProto_TYPE_BOOL, one), field(2, "error", text, one),
			}},
		},
	}, nil)
	require.NoError(t, err)
	return file.Messages()
}

// The codec encodes as protocol buffers do, and decodes what they encode.
func TestTheEncodingIsThatOfProtocolBuffers(t *testing.T) {
	all := messages(t)
	for name, c := range map[string]struct {
		message, none any
		fields        map[string]string
	}{
		"PluginInfo": {
			&Info{Type: CSIPlugin, Name: "a.example.com", Endpoint: "/run/csi.sock", Versions: []string{"1.0.0", "1.13.0"}}, &Info{},
			map[string]string{"type": CSIPlugin, "name": "a.example.com", "endpoint": "/run/csi.sock", "supported_versions": "[1.0.0 1.13.0]"},
		},
		"RegistrationStatus": {
			&Status{Registered: true, Error: "none"}, &Status{}, map[string]string{"plugin_registered": "true", "error": "none"},
		},
	} {
		encoded, err := codec{}.Marshal(c.message)
		require.NoError(t, err)
		dynamic := dynamicpb.NewMessage(all.ByName(protoreflect.Name(name)))
		require.NoError(t, proto.Unmarshal(encoded, dynamic))
		assert.Empty(t, dynamic.GetUnknown())
		for field, value := range c.fields {
			got := dynamic.Get(dynamic.Descriptor().Fields().ByName(protoreflect.Name(field)))
			if list, ok := got.Interface().(protoreflect.List); ok {
				assert.Equal(t, value, "["+list.Get(0).String()+" "+list.Get(1).String()+"]")
				continue
			}
			assert.Equal(t, value, got.String())
		}
		back, err := proto.Marshal(dynamic)
		require.NoError(t, err)
		require.NoError(t, codec{}.Unmarshal(append(back, 0x7a, 1, 'x'), c.none), "with a field that is not known")
		assert.Equal(t, c.message, c.none)
	}
	require.Error(t, codec{}.Unmarshal([]byte{0x0a, 5, 'x'}, &Info{}))
}
