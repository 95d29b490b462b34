package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/store"
)

// The built-in manifests.
var (
	//go:embed manifests/pod.yaml
	builtinPod string
	//go:embed manifests/storage.yaml
	builtinStorage string
)

// manifests are the objects of one run.
type manifests struct {
	pods    []*v1.Pod
	claims  []*v1.PersistentVolumeClaim
	volumes []*v1.PersistentVolume
	classes []*storagev1.StorageClass
}

// loadManifests reads the manifests that o names. Whatever is wrong with them is an [inputError].
func loadManifests(o options, stdin io.Reader) (*manifests, error) {
	text, err := readManifests(o.file, stdin)
	if err != nil {
		return nil, badInput(err)
	}
	objects, err := store.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, badInput(fmt.Errorf("%s: %w", sourceName(o.file), err))
	}
	m := &manifests{}
	var errs []error
	for _, object := range objects {
		if err := m.add(object); err != nil {
			errs = append(errs, err)
		}
	}
	if len(m.pods) == 0 {
		errs = append(errs, fmt.Errorf("%s holds no Pod: add one that uses the volumes", sourceName(o.file)))
	}
	return m, badInput(errs...)
}

// readManifests returns the text of the built-in manifests, of a file, or of standard input.
func readManifests(file string, stdin io.Reader) ([]byte, error) {
	switch file {
	case "":
		return []byte(builtinPod + "---\n" + builtinStorage), nil
	case "-":
		return io.ReadAll(stdin)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-f: %w: give the path of a file with manifests, or leave -f out", err)
	}
	return text, nil
}

// sourceName is what messages call the manifests of a file.
func sourceName(file string) string {
	switch file {
	case "":
		return "the built-in manifests"
	case "-":
		return "standard input"
	}
	return file
}

// add sorts object in. What kubectl prints may be used: the version that an object had elsewhere is taken away.
func (m *manifests) add(object runtime.Object) error {
	if o, ok := object.(metav1.Object); ok {
		o.SetResourceVersion("")
	}
	switch o := object.(type) {
	case *v1.Pod:
		inNamespace(o)
		m.pods = append(m.pods, o)
	case *v1.PersistentVolumeClaim:
		inNamespace(o)
		m.claims = append(m.claims, o)
	case *v1.PersistentVolume:
		m.volumes = append(m.volumes, o)
	case *storagev1.StorageClass:
		m.classes = append(m.classes, o)
	default:
		return fmt.Errorf("kind %s is not used here: give Pod, PersistentVolumeClaim, PersistentVolume and StorageClass only",
			object.GetObjectKind().GroupVersionKind().Kind)
	}
	return nil
}

// inNamespace gives an object without a namespace the one that kubectl would give it.
func inNamespace(o metav1.Object) {
	if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
}

// objects returns all of them, in an order in which each comes after what it refers to.
func (m *manifests) objects() []store.Object {
	return slices.Concat(asObjects(m.classes), asObjects(m.volumes), asObjects(m.claims), asObjects(m.pods))
}

func asObjects[T store.Object](of []T) []store.Object {
	objects := make([]store.Object, len(of))
	for i, o := range of {
		objects[i] = o
	}
	return objects
}

// claimOf returns the claim that a pod's volume refers to, or nil when it is not in the manifests.
func (m *manifests) claimOf(pod *v1.Pod, v *v1.Volume) *v1.PersistentVolumeClaim {
	for _, claim := range m.claims {
		if claim.Namespace == pod.Namespace && claim.Name == v.PersistentVolumeClaim.ClaimName {
			return claim
		}
	}
	return nil
}

// named returns the one of objects that has a name, or nil. The objects are of a kind that has no namespace.
func named[T metav1.Object](objects []T, name string) (found T) {
	for _, o := range objects {
		if o.GetName() == name {
			return o
		}
	}
	return found
}

// className returns the class that a claim asks for, the default class where it leaves that open, and an empty string when
// it asks for a volume without a class.
func (m *manifests) className(claim *v1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	for _, class := range m.classes {
		if class.Annotations[persistentvolume.AnnDefaultClass] == "true" {
			return class.Name
		}
	}
	return ""
}

// containerMount is one volumeMount of one container of a pod.
type containerMount struct {
	container string
	v1.VolumeMount
}

// containerNames returns the names of the containers of pod, those that run first coming first.
func containerNames(pod *v1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names
}

// containerMounts returns the mounts of all containers of pod, those that run first coming first.
func containerMounts(pod *v1.Pod) []containerMount {
	var mounts []containerMount
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			for _, m := range c.VolumeMounts {
				mounts = append(mounts, containerMount{container: c.Name, VolumeMount: m})
			}
		}
	}
	return mounts
}
