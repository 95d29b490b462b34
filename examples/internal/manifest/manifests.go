package manifest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/store"
)

// Set is the objects of one run.
type Set struct {
	// Pods are the pods to run, Claims their claims.
	Pods   []*v1.Pod
	Claims []*v1.PersistentVolumeClaim
	// Volumes exist already; Classes describe new ones.
	Volumes []*v1.PersistentVolume
	Classes []*storagev1.StorageClass
}

// Load reads manifests from a file, from stdin if the file is "-", or from the text builtin if it is empty. Their
// faults are a [show.InputError].
func Load(file string, stdin io.Reader, builtin string) (*Set, error) {
	text, err := read(file, stdin, builtin)
	if err != nil {
		return nil, show.BadInput(err)
	}
	objects, err := store.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, show.BadInput(fmt.Errorf("%s: %w", sourceName(file), err))
	}
	m := &Set{}
	var errs []error
	for _, object := range objects {
		if err := m.add(object); err != nil {
			errs = append(errs, err)
		}
	}
	if len(m.Pods) == 0 {
		errs = append(errs, fmt.Errorf("%s holds no Pod: add one that uses the volumes", sourceName(file)))
	}
	return m, show.BadInput(errs...)
}

func read(file string, stdin io.Reader, builtin string) ([]byte, error) {
	switch file {
	case "":
		return []byte(builtin), nil
	case "-":
		return io.ReadAll(stdin)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-f: %w: give the path of a file with manifests, or leave -f out", err)
	}
	return text, nil
}

// sourceName returns the name of a manifests' file for messages.
func sourceName(file string) string {
	switch file {
	case "":
		return "the built-in manifests"
	case "-":
		return "standard input"
	}
	return file
}

// add adds an object. It accepts kubectl's output: it removes the resourceVersion.
func (m *Set) add(object runtime.Object) error {
	if o, ok := object.(metav1.Object); ok {
		o.SetResourceVersion("")
	}
	switch o := object.(type) {
	case *v1.Pod:
		inNamespace(o)
		m.Pods = append(m.Pods, o)
	case *v1.PersistentVolumeClaim:
		inNamespace(o)
		m.Claims = append(m.Claims, o)
	case *v1.PersistentVolume:
		m.Volumes = append(m.Volumes, o)
	case *storagev1.StorageClass:
		m.Classes = append(m.Classes, o)
	default:
		return fmt.Errorf("kind %s is not used here: give Pod, PersistentVolumeClaim, PersistentVolume and StorageClass only",
			object.GetObjectKind().GroupVersionKind().Kind)
	}
	return nil
}

// inNamespace sets the default namespace on an object without one, as kubectl does.
func inNamespace(o metav1.Object) {
	if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
}

// Objects returns all objects; each comes after the objects that it refers to.
func (m *Set) Objects() []runtime.Object {
	return slices.Concat(asObjects(m.Classes), asObjects(m.Volumes), asObjects(m.Claims), asObjects(m.Pods))
}

func asObjects[T runtime.Object](of []T) []runtime.Object {
	objects := make([]runtime.Object, len(of))
	for i, o := range of {
		objects[i] = o
	}
	return objects
}

// claimOf returns the claim that a pod's volume refers to, or nil if it is not in the manifests.
func (m *Set) claimOf(pod *v1.Pod, v *v1.Volume) *v1.PersistentVolumeClaim {
	for _, claim := range m.Claims {
		if claim.Namespace == pod.Namespace && claim.Name == v.PersistentVolumeClaim.ClaimName {
			return claim
		}
	}
	return nil
}

// named returns the object with a name, or nil. The objects are of a kind without namespaces.
func named[T metav1.Object](objects []T, name string) (found T) {
	for _, o := range objects {
		if o.GetName() == name {
			return o
		}
	}
	return found
}

// className returns the class of a claim: the default class if the claim leaves it open, and "" if the claim requests a
// volume without a class.
func (m *Set) className(claim *v1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	for _, class := range m.Classes {
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

// containerMounts returns the mounts of all containers of pod, in the order in which they start.
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
