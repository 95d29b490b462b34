package volumetest

import (
	"errors"
	"path/filepath"
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func identityCases() []Case {
	return []Case{
		{
			Rule: "I1", Group: "identity", Name: "plugin name",
			Sentence: "A plugin's name MUST be a domain, exactly one slash and a name, and MUST be the same in every value of the plugin.",
			run:      pluginName,
		},
		{
			Rule: "I2", Group: "identity", Name: "foreign spec is declined",
			Sentence: "CanSupport MUST be true for a spec of the plugin and false for every other spec.",
			run:      foreignSpecDeclined,
		},
		{
			Rule: "I3", Group: "identity", Name: "volume name",
			Sentence: "GetVolumeName MUST return the same name, not empty, for all specs of the same storage, also after a restart.",
			run:      volumeName,
		},
		{
			Rule: "I4", Group: "identity", Name: "foreign spec is refused",
			Sentence: "GetVolumeName and NewMounter MUST return an error for a spec of another plugin.",
			run:      foreignSpecRefused,
		},
		{
			Rule: "I5", Group: "identity", Name: "odd names",
			Sentence: "The plugin MUST refuse a name in a spec that cannot be one path element, with an error and before it makes anything.",
			run:      oddNames,
		},
		{
			Rule: "I6", Group: "identity", Name: "spec is not changed",
			Sentence: "No method MAY change the spec or the pod that it gets.",
			run:      specUnchanged,
		},
		{
			Rule: "I7", Group: "identity", Name: "kinds that are declared",
			Sentence: "A plugin that declares kinds of spec MUST support every spec of these kinds and MUST NOT support a spec of any other kind.",
			run:      kindsDeclared,
		},
	}
}

func pluginName(e *env) {
	name := e.plugin.GetPluginName()
	if err := volume.ValidatePluginName(name); err != nil {
		e.broken("GetPluginName: %v", err)
	}
	e.crash()
	if again := e.plugin.GetPluginName(); again != name {
		e.broken("GetPluginName returned %q and then %q", name, again)
	}
}

// foreignSpecs are specs that no plugin under test serves.
func foreignSpecs() map[string]*volume.Spec {
	const driver = "volumetest.foreign.invalid"
	return map[string]*volume.Spec{
		"a spec without a source": {},
		"a pod's volume of another driver": volume.NewSpecFromVolume(&v1.Volume{
			Name: "foreign", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}},
		}),
		"a PersistentVolume of another driver": volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "foreign"},
			Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "foreign"},
			}},
		}, false),
	}
}

func foreignSpecDeclined(e *env) {
	if spec := e.newSpec(); !e.plugin.CanSupport(spec) {
		e.broken("CanSupport is false for volume %q, which Config gave", spec.Name())
	}
	for what, spec := range foreignSpecs() {
		if e.plugin.CanSupport(spec) {
			e.broken("CanSupport is true for %s", what)
		}
		explainer, ok := e.plugin.(volume.Explainer)
		if ok && explainer.ExplainSupport(spec) == nil {
			e.broken("CanSupport is false for %s and ExplainSupport gives no reason", what)
		}
	}
}

func volumeName(e *env) {
	spec := e.newSpec()
	name, err := e.plugin.GetVolumeName(spec)
	e.must("GetVolumeName", err)
	if name == "" {
		e.broken("GetVolumeName of %q is empty", spec.Name())
	}
	e.crash()
	again, err := e.plugin.GetVolumeName(copySpec(spec))
	e.must("GetVolumeName of a copy", err)
	if again != name {
		e.broken("GetVolumeName returned %q and then, for a copy of the spec, %q", name, again)
	}
}

func foreignSpecRefused(e *env) {
	for what, spec := range foreignSpecs() {
		if name, err := e.plugin.GetVolumeName(spec); err == nil {
			e.broken("GetVolumeName of %s returned %q and no error", what, name)
		}
		if _, err := e.plugin.NewMounter(spec, newPod()); err == nil {
			e.broken("NewMounter of %s returned no error", what)
		}
	}
}

// oddElements are names that must not become part of a path.
func oddElements() []string {
	return []string{"", ".", "..", "../escaped", "a/../../escaped", "a/b", "/absolute", "back\\slash", "line\nbreak", "nul\x00byte"}
}

func oddNames(e *env) {
	for _, name := range oddElements() {
		spec := copySpec(e.newSpec())
		rename(spec, name)
		if err := setUpOdd(e, spec); err == nil {
			e.broken("a volume that is called %q was set up", name)
		}
		if unmounter, err := e.plugin.NewUnmounter(name, newPod().UID); err == nil && unmounter.GetPath() != "" {
			e.broken("NewUnmounter accepted the name %q", name)
		}
	}
	if mounts := e.mountsBeneathRoot(); len(mounts) > 0 {
		e.broken("%d mounts were made", len(mounts))
	}
	for _, path := range []string{filepath.Join(e.host.GetPodsDir(), "escaped"), filepath.Join(e.root, "escaped"), filepath.Join(filepath.Dir(e.root), "escaped")} {
		if e.exists(path) {
			e.broken("%s was made", path)
		}
	}
}

func rename(spec *volume.Spec, name string) {
	if spec.PersistentVolume != nil {
		spec.PersistentVolume.Name = name
		return
	}
	spec.Volume.Name = name
}

// errNotSetUp ends an attempt that went as far as it may.
var errNotSetUp = errors.New("not tried")

// setUpOdd tries to set up a volume with a bad name. What needs staging is not staged, so that the mounter must refuse.
func setUpOdd(e *env, spec *volume.Spec) error {
	pod := newPod()
	mounter, err := e.plugin.NewMounter(spec, pod)
	if err != nil {
		return err
	}
	if e.capabilities.Has(volume.CapDeviceMount) {
		e.broken("NewMounter accepted the name %q", spec.Name())
	}
	if mounter == nil {
		return errNotSetUp
	}
	return mounter.SetUp(e.ctx(), volume.MounterArgs{PodUID: string(pod.UID)})
}

func specUnchanged(e *env) {
	spec := e.newSpec()
	before := copySpec(spec)
	s := e.ready(spec)
	p := s.forPod()
	pod := p.pod.DeepCopy()
	p.setUp().tearDown()
	s.release()
	if !reflect.DeepEqual(before, spec) {
		e.broken("the spec of volume %q was changed", spec.Name())
	}
	if !reflect.DeepEqual(pod, p.pod) {
		e.broken("the pod was changed")
	}
}
