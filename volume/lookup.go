package volume

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// LookupError says why a look-up in the registry found no plugin, or more than one. It matches one or more of [ErrNoPlugin],
// [ErrMultiplePlugins], [ErrUnsupported] and [ErrInvalid]:
//
//   - nothing serves the spec, or nothing has the name: ErrNoPlugin;
//   - more than one plugin serves the spec: ErrMultiplePlugins;
//   - the plugin is there but cannot do what is needed, for this spec or at all: ErrNoPlugin and ErrUnsupported;
//   - the spec is nil: ErrNoPlugin and ErrInvalid.
type LookupError struct {
	// Query is what was looked up: `volume "data" (nfs)` with the inner name and the kind of source, or
	// `plugin name "example.com/ram"`.
	Query string
	// Needs is what the plugin must be able to do; empty if any plugin will do.
	Needs Capabilities
	// Matched are the sorted names of the plugins that match Query: more than one if the error matches
	// [ErrMultiplePlugins], one if that plugin lacks a capability of Needs.
	Matched []string
	// Declined are the plugins that do not match Query, sorted by name: those whose CanSupport returned false, and those
	// that declare other kinds of spec ([SpecKindDeclarer]). A look-up by name calls no plugin and lists all.
	Declined []Declined

	classes []error
}

// Declined is one plugin that does not match a look-up.
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

// Error names in one line what was looked up, which plugins are registered and why they declined.
func (e *LookupError) Error() string {
	switch {
	case len(e.Matched) > 1:
		return fmt.Sprintf("%v: %s is served by %s: set exactly one source, or register one plugin for it",
			ErrMultiplePlugins, e.Query, strings.Join(e.Matched, ", "))
	case len(e.Matched) == 1:
		return fmt.Sprintf("%v: %s: %s does not support %v", ErrNoPlugin, e.Query, e.Matched[0], e.Needs)
	case len(e.Declined) == 0:
		return fmt.Sprintf("%v: %s: no plugin is registered", ErrNoPlugin, e.Query)
	}
	var declined []string
	for _, d := range e.Declined {
		declined = append(declined, d.String())
	}
	return fmt.Sprintf("%v: %s: registered plugins: %s", ErrNoPlugin, e.Query, strings.Join(declined, ", "))
}

// Unwrap returns the sentinels that the error matches, and the panics of plugins. The reasons that plugins give are for people
// and are not matched.
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
		&LookupError{Query: "a volume spec that is nil", classes: []error{ErrInvalid, ErrNoPlugin}})
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
