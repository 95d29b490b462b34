package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// SpecKind is a kind of spec: those that have one source of k8s.io/api, or those that name one driver in it.
type SpecKind struct {
	// Source is the source as it is written in a manifest, such as "nfs" or "hostPath".
	Source string
	// Driver narrows the sources "csi" and "flexVolume" to the specs that name this driver, as it is written there.
	// Empty means every driver.
	Driver string
	// Scope narrows the kind to specs of a pod's own volumes or to those of PersistentVolumes. The zero value means both.
	Scope SpecScope
}

// SpecScope says where a spec's source stands.
type SpecScope uint8

const (
	// AnyScope is the volume of a pod and the PersistentVolume alike.
	AnyScope SpecScope = iota
	// PodScope is [Spec.Volume] alone.
	PodScope
	// PersistentScope is [Spec.PersistentVolume] alone.
	PersistentScope
	scopeCount
)

// scopeTexts follow the source and the driver in a text.
var scopeTexts = [scopeCount]string{"", " of a pod", " of a PersistentVolume"}

// DriverKinds returns the kinds of a plugin that specs name as their driver (see [Spec.Driver]): for "example.com/ram",
// csi volumes of driver ram.example.com and flexVolumes of driver example.com/ram.
func DriverKinds(pluginName string) []SpecKind {
	flex := SpecKind{Source: sourceNames[sourceFlexVolume], Driver: pluginName}
	driver := DriverOfPluginName(pluginName)
	if PluginNameOfDriver(driver) != pluginName { // A name with a dot after its slash is no csi driver's.
		return []SpecKind{flex}
	}
	return []SpecKind{{Source: sourceNames[sourceCSI], Driver: driver}, flex}
}

// String returns what narrows the kind after its source: "nfs", "csi ram.example.com of a PersistentVolume".
func (k SpecKind) String() string {
	text := k.Source
	if k.Driver != "" {
		text += " " + k.Driver
	}
	if k.Scope < scopeCount {
		text += scopeTexts[k.Scope]
	}
	return text
}

// Matches reports whether spec is of this kind. It allocates nothing.
func (k SpecKind) Matches(spec *Spec) bool {
	src, ok := sourceNamed(k.Source)
	if !ok || spec == nil || spec.sources(k.Scope)&(1<<src) == 0 {
		return false
	}
	if k.Driver == "" {
		return true
	}
	driver, ok := spec.driverOf(src)
	return ok && driver == k.Driver
}

// check reports whether there can be specs of this kind. The error matches [ErrInvalid].
func (k SpecKind) check() error {
	src, ok := sourceNamed(k.Source)
	switch {
	case !ok:
		return fmt.Errorf("spec kind %q: there is no source of that name: use one of %s, or declare no kinds: %w",
			k, strings.Join(sourceNames[:], ", "), ErrInvalid)
	case k.Driver != "" && src != sourceCSI && src != sourceFlexVolume:
		return fmt.Errorf("spec kind %q: only csi and flexVolume have drivers: leave Driver empty: %w", k, ErrInvalid)
	case k.Scope >= scopeCount:
		return fmt.Errorf("spec kind %q: there is no scope %d: use one of the constants: %w", k, k.Scope, ErrInvalid)
	}
	return nil
}

// declaredKinds returns the kinds that plugin declares, checked; none when it declares nothing.
func declaredKinds(plugin VolumePlugin) ([]SpecKind, error) {
	declarer, ok := plugin.(SpecKindDeclarer)
	if !ok {
		return nil, nil
	}
	kinds := slices.Clone(declarer.SpecKinds())
	var errs []error
	for _, kind := range kinds {
		errs = append(errs, kind.check())
	}
	return kinds, errors.Join(errs...)
}

// notDeclared says why a plugin that declares these kinds does not serve a spec.
type notDeclared []SpecKind

func (n notDeclared) Error() string {
	var kinds []string
	for _, kind := range n {
		kinds = append(kinds, kind.String())
	}
	return "it declares " + strings.Join(kinds, ", ")
}
