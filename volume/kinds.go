package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// SpecKind is a kind of spec: those that have one source of k8s.io/api, or those that name one driver in it.
type SpecKind struct {
	// Source is the source as it is written in a manifest, such as "nfs" or "hostPath"; it means the volume of a pod and
	// the PersistentVolume alike.
	Source string
	// Driver narrows the sources "csi" and "flexVolume" to the specs that name this driver, as it is written there.
	// Empty means every driver.
	Driver string
}

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

// String returns the source, and the driver where there is one: "nfs", "csi ram.example.com".
func (k SpecKind) String() string {
	if k.Driver == "" {
		return k.Source
	}
	return k.Source + " " + k.Driver
}

// Matches reports whether spec is of this kind. It allocates nothing.
func (k SpecKind) Matches(spec *Spec) bool {
	src, ok := sourceNamed(k.Source)
	if !ok || spec == nil || spec.sources()&(1<<src) == 0 {
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
	}
	return nil
}

// declaredKinds returns the kinds that plugin declares, checked and without those that another one covers; none when it
// declares nothing.
func declaredKinds(plugin VolumePlugin) ([]SpecKind, error) {
	declarer, ok := plugin.(SpecKindDeclarer)
	if !ok {
		return nil, nil
	}
	declared := slices.Clone(declarer.SpecKinds())
	var errs []error
	for _, kind := range declared {
		errs = append(errs, kind.check())
	}
	kinds := declared[:0:0]
	for _, kind := range declared {
		whole := SpecKind{Source: kind.Source}
		if !slices.Contains(kinds, kind) && (kind == whole || !slices.Contains(declared, whole)) {
			kinds = append(kinds, kind)
		}
	}
	return kinds, errors.Join(errs...)
}

// notDeclared says why a plugin of these kinds was not asked.
type notDeclared []SpecKind

func (n notDeclared) Error() string {
	var kinds []string
	for _, kind := range n {
		kinds = append(kinds, kind.String())
	}
	return "it declares " + strings.Join(kinds, ", ")
}
