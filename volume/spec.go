package volume

import (
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Spec is one volume as a plugin sees it: a volume of a pod or a PersistentVolume. Exactly one of the two is set. The objects are
// shared and must not be changed.
type Spec struct {
	// Volume is the volume of a pod that needs no claim.
	Volume *v1.Volume
	// PersistentVolume is the volume that a claim is bound to.
	PersistentVolume *v1.PersistentVolume
	// ReadOnly is true when the pod's reference to the claim asks for read-only. A volume that needs no claim says so
	// in its source instead.
	ReadOnly bool
}

// NewSpecFromVolume returns the spec of a volume that needs no claim. Nothing is copied.
func NewSpecFromVolume(vol *v1.Volume) *Spec { return &Spec{Volume: vol} }

// NewSpecFromPersistentVolume returns the spec of a PersistentVolume. readOnly comes from the pod's reference to the
// claim. Nothing is copied.
func NewSpecFromPersistentVolume(pv *v1.PersistentVolume, readOnly bool) *Spec {
	return &Spec{PersistentVolume: pv, ReadOnly: readOnly}
}

// Name returns the inner name: that of the pod's volume, or of the PersistentVolume. It is empty if neither is set.
func (s *Spec) Name() string {
	switch {
	case s == nil:
		return ""
	case s.Volume != nil:
		return s.Volume.Name
	case s.PersistentVolume != nil:
		return s.PersistentVolume.Name
	}
	return ""
}

// Driver is what a spec says to a plugin that has no field of its own in k8s.io/api.
type Driver struct {
	// PluginName is the plugin's name, with its one slash: driver "foo.example.com" is plugin "example.com/foo".
	PluginName string
	// Handle is the plugin's own id of the volume; empty for a volume inline in a pod.
	Handle string
	// FSType is the filesystem that is asked for; empty means the plugin's default.
	FSType string
	// ReadOnly is true when the source or the pod's reference to the claim asks for read-only.
	ReadOnly bool
	// Parameters are the plugin's parameters; a copy.
	Parameters map[string]string
	// SecretName is the name of the secret that the source refers to; empty when there is none. [Driver.Secret] gets it.
	SecretName string
	// SecretNamespace is the namespace of that secret; empty means the pod's.
	SecretNamespace string
}

// Driver returns what the spec's csi or flexVolume source says, and false when it has neither.
func (s *Spec) Driver() (Driver, bool) {
	switch {
	case s == nil:
		return Driver{}, false
	case s.Volume != nil:
		return inlineDriver(&s.Volume.VolumeSource)
	case s.PersistentVolume != nil:
		d, ok := persistentDriver(&s.PersistentVolume.Spec.PersistentVolumeSource)
		d.ReadOnly = d.ReadOnly || s.ReadOnly
		return d, ok
	}
	return Driver{}, false
}

// HasDriver reports whether [Spec.Driver] names the plugin pluginName. Call it in CanSupport: it copies nothing.
func (s *Spec) HasDriver(pluginName string) bool {
	if s == nil {
		return false
	}
	if driver, ok := s.csiDriver(); ok {
		return drives(driver, pluginName)
	}
	driver, ok := s.flexDriver()
	return ok && driver == pluginName
}

// IsDriverOfPlugin reports whether driver, as a class names it, is that of the plugin pluginName: the plugin's name, or a CSI
// driver's name that means it ([PluginNameOfDriver]).
func IsDriverOfPlugin(driver, pluginName string) bool {
	return driver == pluginName || drives(driver, pluginName)
}

// drives reports whether [PluginNameOfDriver] of driver is pluginName.
func drives(driver, pluginName string) bool {
	name, domain, ok := strings.Cut(driver, ".")
	if !ok {
		return driver == pluginName
	}
	rest, found := strings.CutPrefix(pluginName, domain)
	return found && len(rest) == len(name)+1 && rest[0] == '/' && rest[1:] == name
}

func inlineDriver(source *v1.VolumeSource) (Driver, bool) {
	switch {
	case source.CSI != nil:
		d := Driver{
			PluginName: PluginNameOfDriver(source.CSI.Driver),
			Parameters: maps.Clone(source.CSI.VolumeAttributes),
		}
		if source.CSI.FSType != nil {
			d.FSType = *source.CSI.FSType
		}
		if source.CSI.ReadOnly != nil {
			d.ReadOnly = *source.CSI.ReadOnly
		}
		if ref := source.CSI.NodePublishSecretRef; ref != nil {
			d.SecretName = ref.Name
		}
		return d, true
	case source.FlexVolume != nil:
		d := Driver{
			PluginName: source.FlexVolume.Driver,
			FSType:     source.FlexVolume.FSType,
			ReadOnly:   source.FlexVolume.ReadOnly,
			Parameters: maps.Clone(source.FlexVolume.Options),
		}
		if ref := source.FlexVolume.SecretRef; ref != nil {
			d.SecretName = ref.Name
		}
		return d, true
	}
	return Driver{}, false
}

func persistentDriver(source *v1.PersistentVolumeSource) (Driver, bool) {
	switch {
	case source.CSI != nil:
		d := Driver{
			PluginName: PluginNameOfDriver(source.CSI.Driver),
			Handle:     source.CSI.VolumeHandle,
			FSType:     source.CSI.FSType,
			ReadOnly:   source.CSI.ReadOnly,
			Parameters: maps.Clone(source.CSI.VolumeAttributes),
		}
		if ref := source.CSI.NodePublishSecretRef; ref != nil {
			d.SecretName, d.SecretNamespace = ref.Name, ref.Namespace
		}
		return d, true
	case source.FlexVolume != nil:
		d := Driver{
			PluginName: source.FlexVolume.Driver,
			FSType:     source.FlexVolume.FSType,
			ReadOnly:   source.FlexVolume.ReadOnly,
			Parameters: maps.Clone(source.FlexVolume.Options),
		}
		if ref := source.FlexVolume.SecretRef; ref != nil {
			d.SecretName, d.SecretNamespace = ref.Name, ref.Namespace
		}
		return d, true
	}
	return Driver{}, false
}

// PluginNameOfDriver returns the plugin's name for a CSI driver's name. The first label is the name, the rest is the domain: driver
// "foo.example.com" is plugin "example.com/foo". A name without a dot is returned unchanged; no plugin has it.
func PluginNameOfDriver(driver string) string {
	name, domain, ok := strings.Cut(driver, ".")
	if !ok {
		return driver
	}
	return domain + "/" + name
}

// DriverOfPluginName undoes [PluginNameOfDriver]: plugin "example.com/foo" is driver "foo.example.com".
func DriverOfPluginName(pluginName string) string {
	domain, name, ok := strings.Cut(pluginName, "/")
	if !ok {
		return pluginName
	}
	return name + "." + domain
}
