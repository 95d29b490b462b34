package csispec

import (
	"encoding/json"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/volumekit/volumekit/volume"
)

// CheckSizes returns an error unless every string and map of the message keeps the limits of the specification. The
// error names the field, not its value, and matches [volume.ErrInvalid].
func CheckSizes(message proto.Message) error { return CheckSizesUpTo(message, MaxString) }

// CheckSizesUpTo is [CheckSizes] with another general limit of strings, for a sender of longer strings.
func CheckSizesUpTo(message proto.Message, maxString int) error {
	var err error
	walk(message.ProtoReflect(), func(_ protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) {
		if size, limit := measure(field, value); size > max(limit, longer(limit, maxString)) && err == nil {
			err = fmt.Errorf("%s has %d bytes, of which the CSI specification allows %d: %w", field.FullName(), size, limit, volume.ErrInvalid)
		}
	})
	return err
}

// longer returns maxString for a field with the general limit of strings.
func longer(limit, maxString int) int {
	if limit == MaxString {
		return maxString
	}
	return limit
}

// measure returns the size of a field and its limit; 0 and 0 for a field without a limit.
func measure(field protoreflect.FieldDescriptor, value protoreflect.Value) (size, limit int) {
	switch {
	case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
		value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			size += len(key.String()) + len(value.String())
			return true
		})
		return size, MaxMap
	case field.Kind() != protoreflect.StringKind:
		return 0, 0
	case field.IsList() && field.Name() == "mount_flags":
		for i := range value.List().Len() {
			size += len(value.List().Get(i).String())
		}
		return size, MaxMap
	case field.IsList():
		for i := range value.List().Len() {
			size = max(size, len(value.List().Get(i).String()))
		}
		return size, limitOf(field.Name())
	}
	return len(value.String()), limitOf(field.Name())
}

func limitOf(field protoreflect.Name) int {
	switch field {
	case "target_path", "staging_target_path", "volume_path", "volume_publish_path":
		return MaxPath
	case "node_id", "published_node_ids":
		return MaxNodeID
	case "message": // Text for people. Only the size of the whole message bounds it.
		return MaxMap
	}
	return MaxString
}

// TokensKey is the key of Kubernetes' service account tokens, in the volume context or in the secrets. In both, the
// value is secret.
const TokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// Secrets returns the values of all fields that the specification marks as secret, and the tokens. Remove them from
// errors and logs.
func Secrets(message proto.Message) volume.Secrets {
	var values []string
	walk(message.ProtoReflect(), func(_ protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) {
		switch {
		case isText(field) && field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				if key.String() == TokensKey {
					values = append(values, tokensIn(value.String())...)
				}
				if secret(field) || key.String() == TokensKey {
					values = append(values, value.String())
				}
				return true
			})
		case !secret(field):
		case field.Kind() == protoreflect.StringKind && !field.IsList():
			values = append(values, value.String())
		}
	})
	return volume.NewSecrets(values...)
}

// isText reports whether a field, or each of its values, is a string.
func isText(field protoreflect.FieldDescriptor) bool {
	if field.IsMap() {
		field = field.MapValue()
	}
	return field.Kind() == protoreflect.StringKind
}

// tokensIn returns the tokens in Kubernetes' JSON object, which has them by audience. If the text is not such an
// object, the whole text is secret.
func tokensIn(text string) []string {
	var byAudience map[string]struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(text), &byAudience); err != nil {
		return nil
	}
	var tokens []string
	for _, one := range byAudience {
		tokens = append(tokens, one.Token)
	}
	return tokens
}

// Stripped prints a message without its secrets. It does no work before it is printed.
type Stripped struct {
	// Message is the message to print; it is not changed.
	Message proto.Message
}

// String returns the message in one line. It prints [volume.Redacted] for each value of a map of secrets, and omits
// other secrets.
func (s Stripped) String() string {
	if s.Message == nil {
		return ""
	}
	message := proto.Clone(s.Message)
	walk(message.ProtoReflect(), func(of protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) {
		switch {
		case field.IsMap() && isText(field):
			redact(value.Map(), func(key string) bool { return secret(field) || key == TokensKey })
		case !secret(field):
		default:
			of.Clear(field)
		}
	})
	return prototext.MarshalOptions{}.Format(message)
}

func redact(values protoreflect.Map, hidden func(key string) bool) {
	values.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		if hidden(key.String()) {
			values.Set(key, protoreflect.ValueOfString(volume.Redacted))
		}
		return true
	})
}

func secret(field protoreflect.FieldDescriptor) bool {
	marked, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
	return marked
}

// walk calls visit for each field that is set in message and in nested messages, together with its message.
func walk(message protoreflect.Message, visit func(protoreflect.Message, protoreflect.FieldDescriptor, protoreflect.Value)) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		visit(message, field, value)
		switch {
		case field.Kind() != protoreflect.MessageKind || field.IsMap():
		case field.IsList():
			for i := range value.List().Len() {
				walk(value.List().Get(i).Message(), visit)
			}
		default:
			walk(value.Message(), visit)
		}
		return true
	})
}
