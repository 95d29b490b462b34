package volumetest

import (
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// kindsDeclared: the registry goes by what a plugin declares and asks it nothing, so that CanSupport must say the same of
// every spec, also of one that holds nothing but its source and driver.
func kindsDeclared(e *env) {
	declarer, ok := e.plugin.(volume.SpecKindDeclarer)
	if !ok || len(declarer.SpecKinds()) == 0 {
		return
	}
	kinds := declarer.SpecKinds()
	specs := []*volume.Spec{e.newSpec()}
	for _, kind := range append(slices.Clone(kinds), otherKinds()...) {
		specs = append(specs, bareSpecs(kind)...)
	}
	for _, spec := range specs {
		declared := slices.ContainsFunc(kinds, func(k volume.SpecKind) bool { return k.Matches(spec) })
		if supported := e.plugin.CanSupport(spec); supported != declared {
			e.broken("CanSupport is %t for volume %q with %s, and SpecKinds declares %v alone",
				supported, spec.Name(), sourceOf(spec), kinds)
		}
	}
}

// otherKinds are every source that k8s.io/api knows, with a driver that no plugin has where it has one.
func otherKinds() []volume.SpecKind {
	var kinds []volume.SpecKind
	for _, source := range []reflect.Type{reflect.TypeFor[v1.VolumeSource](), reflect.TypeFor[v1.PersistentVolumeSource]()} {
		for i := range source.NumField() {
			kinds = append(kinds, volume.SpecKind{Source: sourceName(source.Field(i)), Driver: "volumetest.foreign.invalid"})
		}
	}
	return kinds
}

// sourceOf names the source of spec, and where it is: a kind with a scope matches only one of the two.
func sourceOf(spec *volume.Spec) string {
	place := "in a pod"
	if spec.PersistentVolume != nil {
		place = "in a PersistentVolume"
	}
	for _, kind := range otherKinds() {
		if (volume.SpecKind{Source: kind.Source}).Matches(spec) {
			return kind.Source + " " + place
		}
	}
	return "a source that k8s.io/api does not have"
}

// bareSpecs are a pod's volume and a PersistentVolume of kind, as far as there are such: they say nothing but the
// driver, and a handle.
func bareSpecs(kind volume.SpecKind) []*volume.Spec {
	var specs []*volume.Spec
	vol := &v1.Volume{Name: "bare"}
	if setSource(reflect.ValueOf(&vol.VolumeSource).Elem(), kind) {
		specs = append(specs, volume.NewSpecFromVolume(vol))
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}
	if setSource(reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem(), kind) {
		specs = append(specs, volume.NewSpecFromPersistentVolume(pv, false))
	}
	return specs
}

// setSource sets the field of sources that kind names, and reports whether there is one.
func setSource(sources reflect.Value, kind volume.SpecKind) bool {
	for i := range sources.NumField() {
		if sourceName(sources.Type().Field(i)) != kind.Source {
			continue
		}
		source := reflect.New(sources.Type().Field(i).Type.Elem())
		setText(source.Elem(), "Driver", kind.Driver)
		setText(source.Elem(), "VolumeHandle", "bare")
		sources.Field(i).Set(source)
		return true
	}
	return false
}

func setText(object reflect.Value, field, text string) {
	if f := object.FieldByName(field); f.IsValid() && f.Kind() == reflect.String {
		f.SetString(text)
	}
}

func sourceName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}
