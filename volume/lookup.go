package volume

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// LookupError says why a look-up in the registry found no plugin. It matches one or more of [ErrNoPlugin],
// [ErrMultiplePlugins], [ErrUnsupported] and [ErrInvalid]:
//
//   - nothing serves the spec, or nothing has the name: ErrNoPlugin;
//   - more than one plugin serves the spec: ErrMultiplePlugins;
//   - the plugin is there but cannot do what is needed, for this spec or at all: ErrNoPlugin and ErrUnsupported;
//   - the spec is nil: ErrNoPlugin and ErrInvalid.
type LookupError struct {
	// Asked is what was looked for: `volume "data" (nfs)` with the inner name and the kind of source, or
	// `plugin name "example.com/ram"`.
	Asked string
	// Needs is what the plugin must be able to do; empty when any plugin will do.
	Needs Capabilities
	// Matched are the names of the plugins that serve what was asked for, sorted; more than one when the error matches
	// [ErrMultiplePlugins], one when the plugin lacks what Needs says.
	Matched []string
	// Declined are the plugins that do not serve it, in the order of their names: those that were asked and said no, and
	// those that declare other kinds of spec ([SpecKindDeclarer]). A look-up by name asks none and lists all.
	Declined []Declined

	classes []error
}

// Declined is one plugin that does not serve what was asked for.
type Declined struct {
	// Plugin is the plugin's name.
	Plugin string
	// Why is the reason that the plugin gives through [Explainer] or the kinds of spec that it declares, or a
	// [*PanicError]; nil when it gives none.
	Why error
}

// String returns the plugin and, in parentheses, its reason.
func (d Declined) String() string {
	if d.Why == nil {
		return d.Plugin
	}
	return fmt.Sprintf("%s (%v)", d.Plugin, d.Why)
}

// Error says in one line what was asked, which plugins were asked and why they declined.
func (e *LookupError) Error() string {
	switch {
	case len(e.Matched) > 1:
		return fmt.Sprintf("%v: %s is served by %s: set exactly one source, or register one plugin for it",
			ErrMultiplePlugins, e.Asked, strings.Join(e.Matched, ", "))
	case len(e.Matched) == 1:
		return fmt.Sprintf("%v: %s: %s does not support %v", ErrNoPlugin, e.Asked, e.Matched[0], e.Needs)
	case len(e.Declined) == 0:
		return fmt.Sprintf("%v: %s: no plugin is registered", ErrNoPlugin, e.Asked)
	}
	var asked []string
	for _, d := range e.Declined {
		asked = append(asked, d.String())
	}
	return fmt.Sprintf("%v: %s: asked %s", ErrNoPlugin, e.Asked, strings.Join(asked, ", "))
}

// Unwrap returns the sentinels that the error matches and the panics of plugins that were asked. The reasons that
// plugins give are for people and are not matched.
func (e *LookupError) Unwrap() []error {
	errs := slices.Clone(e.classes)
	for _, d := range e.Declined {
		if p, ok := d.Why.(*PanicError); ok { //nolint:errorlint // guard returns it bare; a plugin's reason is not searched.
			errs = append(errs, p)
		}
	}
	return errs
}

// errNilSpec is the answer to a look-up without a spec.
func errNilSpec() error {
	return fmt.Errorf("volume spec is nil: %w",
		&LookupError{Asked: "a volume spec that is nil", classes: []error{ErrInvalid, ErrNoPlugin}})
}

// describeSpec returns the inner name and the kinds of source of spec.
func describeSpec(spec *Spec) string {
	return fmt.Sprintf("volume %s (%s)", Quote(spec.Name()), strings.Join(sourceKinds(spec), " and "))
}

// sourceKinds returns the kinds of source that are set in spec, as they are written in a manifest. It is for errors.
func sourceKinds(spec *Spec) []string {
	var kinds []string
	if spec.Volume != nil {
		kinds = setFields(&spec.Volume.VolumeSource)
	}
	if spec.PersistentVolume != nil {
		for _, kind := range setFields(&spec.PersistentVolume.Spec.PersistentVolumeSource) {
			kinds = append(kinds, kind+" of a PersistentVolume")
		}
	}
	if kinds == nil {
		return []string{"no source"}
	}
	if d, ok := spec.Driver(); ok {
		kinds = append(slices.Clip(kinds), "driver of plugin "+Quote(d.PluginName))
	}
	return kinds
}

// setFields returns the JSON names of the pointers in *source, a struct of pointers, that are not nil.
func setFields(source any) []string {
	var names []string
	v := reflect.ValueOf(source).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

func describeName(name string) string { return fmt.Sprintf("plugin name %q", name) }
