package volume

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The types here that hold what a user wrote print, encode and log without the values of it: they may be secrets.

// PublicKeyDeclarer is an optional interface. It declares which values in the specs of a plugin are no secrets. Without it, none is
// public.
type PublicKeyDeclarer interface {
	VolumePlugin
	// PublicKeys returns keys of volumeAttributes, of options of flexVolume and of mount options, such as "share" or "vers". The
	// records of a node have their values in clear text, and [Redacted] for all others. After a restart, CanSupport,
	// GetVolumeName, GetDeviceMountPath and the calls that tear down, unstage and detach get the spec of the record. So every value
	// that they need must be public. PublicKeys is called once, at registration.
	PublicKeys() []string
}

// Redacted replaces a value in a record that is not public.
const Redacted = "***"

// PublicKeys returns the keys that the plugin with that name declares as a [PublicKeyDeclarer]; none if there is no such plugin. The
// caller does not change the slice.
func (m *VolumePluginMgr) PublicKeys(pluginName string) []string {
	if entry := m.plugins.Load().byName[pluginName]; entry != nil {
		return entry.publicKeys
	}
	return nil
}

// publicKeysOf returns the keys that a plugin declares.
func publicKeysOf(plugin VolumePlugin) []string {
	if p, ok := plugin.(PublicKeyDeclarer); ok {
		return slices.Clone(p.PublicKeys())
	}
	return nil
}

// Recorded returns the spec as it is in records: a copy without labels, annotations and status, and only with the values of options
// whose keys are public. Other attributes have the value [Redacted]. Other mount options are omitted.
func (s *Spec) Recorded(public []string) *Spec {
	r, keys := &Spec{ReadOnly: s.ReadOnly}, publicKeys(public)
	if s.Volume != nil {
		r.Volume = s.Volume.DeepCopy()
		keys.redactSource(&r.Volume.VolumeSource)
	}
	if pv := s.PersistentVolume; pv != nil {
		r.PersistentVolume = &v1.PersistentVolume{Spec: *pv.Spec.DeepCopy()}
		r.PersistentVolume.Name, r.PersistentVolume.UID = pv.Name, pv.UID
		keys.redactPersistent(&r.PersistentVolume.Spec)
	}
	return r
}

// IsPublic reports whether [Spec.Recorded] keeps every value of the spec. Two such specs are equal if their recorded specs are.
func (s *Spec) IsPublic(public []string) bool {
	keys := publicKeys(public)
	if driver, ok := s.Driver(); ok && len(keys.hidden(driver.Parameters)) > 0 {
		return false
	}
	if s.Volume != nil && len(keys.hiddenURLs(&s.Volume.VolumeSource)) > 0 {
		return false
	}
	if s.PersistentVolume == nil {
		return true
	}
	pv := &s.PersistentVolume.Spec
	return len(keys.hiddenOptions(pv.MountOptions)) == 0 && (pv.AzureDisk == nil || slices.Contains(keys, "diskURI"))
}

// publicKeys are keys of options whose values are no secrets.
type publicKeys []string

func (k publicKeys) redactSource(source *v1.VolumeSource) {
	if source.CSI != nil {
		k.redactValues(source.CSI.VolumeAttributes)
	}
	if source.FlexVolume != nil {
		k.redactValues(source.FlexVolume.Options)
	}
	if source.GitRepo != nil { // a URL, which may hold a password
		k.redact("repository", &source.GitRepo.Repository)
	}
	if source.AzureDisk != nil { // likewise, or a token
		k.redact("diskURI", &source.AzureDisk.DataDiskURI)
	}
	if source.Ephemeral != nil && source.Ephemeral.VolumeClaimTemplate != nil {
		source.Ephemeral.VolumeClaimTemplate.ObjectMeta = metav1.ObjectMeta{}
	}
}

func (k publicKeys) redactPersistent(spec *v1.PersistentVolumeSpec) {
	if spec.CSI != nil {
		k.redactValues(spec.CSI.VolumeAttributes)
	}
	if spec.FlexVolume != nil {
		k.redactValues(spec.FlexVolume.Options)
	}
	if spec.AzureDisk != nil {
		k.redact("diskURI", &spec.AzureDisk.DataDiskURI)
	}
	spec.MountOptions = slices.DeleteFunc(spec.MountOptions, func(option string) bool {
		key, _, _ := strings.Cut(option, "=")
		return strings.Contains(option, ",") || !slices.Contains(k, key) // a comma may hide a second option
	})
}

func (k publicKeys) redactValues(options map[string]string) {
	for key, value := range options {
		k.redact(key, &value)
		options[key] = value
	}
}

// redact replaces the value of an option that is not public.
func (k publicKeys) redact(key string, value *string) {
	if *value != "" && !slices.Contains(k, key) {
		*value = Redacted
	}
}

// publicSpec is the printed form of a Spec.
type publicSpec struct {
	Name     string
	Source   string
	ReadOnly bool
}

func (s *Spec) public() publicSpec {
	return publicSpec{Name: s.Name(), Source: strings.Join(sourceKinds(s), " and "), ReadOnly: s.ReadOnly}
}

// Format implements [fmt.Formatter]: with every verb, the name, the kind of the source and the read-only flag.
func (s Spec) Format(state fmt.State, verb rune) { format(state, verb, s.public()) }

// MarshalJSON implements [json.Marshaler]: the same as Format. To encode the whole spec, encode its two objects.
func (s Spec) MarshalJSON() ([]byte, error) { return json.Marshal(s.public()) }

// LogValue implements [slog.LogValuer]: the same as Format.
func (s Spec) LogValue() slog.Value { return slog.AnyValue(s.public()) }

// publicDriver is the printed form of a Driver.
type publicDriver struct {
	PluginName, Handle, FSType string
	ReadOnly                   bool
	Parameters                 []string // their keys
	SecretName                 string
	SecretNamespace            string
}

func (d Driver) public() publicDriver {
	return publicDriver{
		PluginName: d.PluginName, Handle: d.Handle, FSType: d.FSType, ReadOnly: d.ReadOnly,
		Parameters: sortedKeys(d.Parameters), SecretName: d.SecretName, SecretNamespace: d.SecretNamespace,
	}
}

// Format implements [fmt.Formatter]: with every verb, everything but the values of the parameters.
func (d Driver) Format(state fmt.State, verb rune) { format(state, verb, d.public()) }

// MarshalJSON implements [json.Marshaler]: the same as Format.
func (d Driver) MarshalJSON() ([]byte, error) { return json.Marshal(d.public()) }

// LogValue implements [slog.LogValuer]: the same as Format.
func (d Driver) LogValue() slog.Value { return slog.AnyValue(d.public()) }

// publicOptions is the printed form of VolumeOptions.
type publicOptions struct {
	PVName, PVC, Source string
	ReclaimPolicy       string
	MountOptions        int
	Parameters          []string // their keys
}

func (o VolumeOptions) public() publicOptions {
	p := publicOptions{
		PVName: o.PVName, ReclaimPolicy: string(o.PersistentVolumeReclaimPolicy), MountOptions: len(o.MountOptions),
		Parameters: sortedKeys(o.Parameters),
	}
	if o.PVC != nil {
		p.PVC = o.PVC.Namespace + "/" + o.PVC.Name
	}
	if o.Source != nil {
		p.Source = o.Source.Name
	}
	return p
}

// Format implements [fmt.Formatter]: with every verb, the names of the objects, the keys of the parameters and the number of
// mount options.
func (o VolumeOptions) Format(state fmt.State, verb rune) { format(state, verb, o.public()) }

// MarshalJSON implements [json.Marshaler]: the same as Format.
func (o VolumeOptions) MarshalJSON() ([]byte, error) { return json.Marshal(o.public()) }

// LogValue implements [slog.LogValuer]: the same as Format.
func (o VolumeOptions) LogValue() slog.Value { return slog.AnyValue(o.public()) }

func format(state fmt.State, verb rune, public any) {
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), public) // a Formatter cannot return an error
}

func sortedKeys(values map[string]string) []string { return slices.Sorted(maps.Keys(values)) }

// maxShown is how many bytes of a user's text an error shows.
const maxShown = 64

// Quote quotes a user's text for an error, and cuts it at 64 bytes.
func Quote(text string) string {
	if len(text) <= maxShown {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q... (%d bytes)", text[:maxShown], len(text))
}

// optionKey returns the key of an option for an error: its value may be a secret.
func optionKey(option string) string {
	key, _, _ := strings.Cut(option, "=")
	return Quote(key)
}

// OptionKeys returns the names of mount options for an error: each by its key, quoted and cut at 64 bytes, because its value may be a
// secret. If there are many, it names only the first ones.
func OptionKeys(options []string) string {
	const most = 8
	var keys []string
	for _, option := range options[:min(len(options), most)] {
		keys = append(keys, optionKey(option))
	}
	if len(options) > most {
		keys = append(keys, fmt.Sprintf("%d more", len(options)-most))
	}
	return strings.Join(keys, ", ")
}
