package store

import (
	"fmt"
	"reflect"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The kinds of object that a store keeps. They are not to be changed.
var (
	// PersistentVolumes is the kind of *v1.PersistentVolume; it has no namespace.
	PersistentVolumes = v1.SchemeGroupVersion.WithKind("PersistentVolume")
	// PersistentVolumeClaims is the kind of *v1.PersistentVolumeClaim.
	PersistentVolumeClaims = v1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
	// Pods is the kind of *v1.Pod.
	Pods = v1.SchemeGroupVersion.WithKind("Pod")
	// Nodes is the kind of *v1.Node; it has no namespace.
	Nodes = v1.SchemeGroupVersion.WithKind("Node")
	// ConfigMaps is the kind of *v1.ConfigMap.
	ConfigMaps = v1.SchemeGroupVersion.WithKind("ConfigMap")
	// Secrets is the kind of *v1.Secret.
	Secrets = v1.SchemeGroupVersion.WithKind("Secret")
	// StorageClasses is the kind of *storagev1.StorageClass; it has no namespace.
	StorageClasses = storagev1.SchemeGroupVersion.WithKind("StorageClass")
	// VolumeAttachments is the kind of *storagev1.VolumeAttachment; it has no namespace.
	VolumeAttachments = storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")
	// CSINodes is the kind of *storagev1.CSINode; it has no namespace.
	CSINodes = storagev1.SchemeGroupVersion.WithKind("CSINode")
	// CSIDrivers is the kind of *storagev1.CSIDriver; it has no namespace.
	CSIDrivers = storagev1.SchemeGroupVersion.WithKind("CSIDriver")
	// CSIStorageCapacities is the kind of *storagev1.CSIStorageCapacity.
	CSIStorageCapacities = storagev1.SchemeGroupVersion.WithKind("CSIStorageCapacity")
	// VolumeAttributesClasses is the kind of *storagev1.VolumeAttributesClass; it has no namespace.
	VolumeAttributesClasses = storagev1.SchemeGroupVersion.WithKind("VolumeAttributesClass")
	// Leases is the kind of *coordinationv1.Lease.
	Leases = coordinationv1.SchemeGroupVersion.WithKind("Lease")
)

// knownKind is what is known of one kind.
type knownKind struct {
	kind       schema.GroupVersionKind
	object     runtime.Object // the zero value of its type; never changed
	namespaced bool
}

// knownKinds is the table of all kinds, sorted by their names.
var knownKinds = [...]knownKind{
	{kind: CSIDrivers, object: &storagev1.CSIDriver{}},
	{kind: CSINodes, object: &storagev1.CSINode{}},
	{kind: CSIStorageCapacities, object: &storagev1.CSIStorageCapacity{}, namespaced: true},
	{kind: ConfigMaps, object: &v1.ConfigMap{}, namespaced: true},
	{kind: Leases, object: &coordinationv1.Lease{}, namespaced: true},
	{kind: Nodes, object: &v1.Node{}},
	{kind: PersistentVolumes, object: &v1.PersistentVolume{}},
	{kind: PersistentVolumeClaims, object: &v1.PersistentVolumeClaim{}, namespaced: true},
	{kind: Pods, object: &v1.Pod{}, namespaced: true},
	{kind: Secrets, object: &v1.Secret{}, namespaced: true},
	{kind: StorageClasses, object: &storagev1.StorageClass{}},
	{kind: VolumeAttachments, object: &storagev1.VolumeAttachment{}},
	{kind: VolumeAttributesClasses, object: &storagev1.VolumeAttributesClass{}},
}

// Kinds returns every kind that a store keeps, sorted by name.
func Kinds() []schema.GroupVersionKind {
	kinds := make([]schema.GroupVersionKind, 0, len(knownKinds))
	for _, k := range knownKinds {
		kinds = append(kinds, k.kind)
	}
	return kinds
}

// KindOf returns the kind of obj by its Go type, whatever its TypeMeta says. A type that no store keeps is an error
// that matches [ErrInvalid].
func KindOf(obj runtime.Object) (schema.GroupVersionKind, error) {
	t := reflect.TypeOf(obj)
	for _, k := range knownKinds {
		if reflect.TypeOf(k.object) == t {
			return k.kind, nil
		}
	}
	return schema.GroupVersionKind{}, fmt.Errorf("%T is none of the kinds that a store keeps (%s): %w",
		obj, kindNames(), ErrInvalid)
}

// Namespaced reports whether objects of kind live in a namespace. A kind that no store keeps is an error that matches
// [ErrInvalid].
func Namespaced(kind schema.GroupVersionKind) (bool, error) {
	for _, k := range knownKinds {
		if k.kind == kind {
			return k.namespaced, nil
		}
	}
	return false, fmt.Errorf("kind %q is none of those that a store keeps (%s): %w", kind, kindNames(), ErrInvalid)
}

// KeyOf returns the key of obj. The error matches [ErrInvalid] when no store keeps its type or obj is nil; its name is
// not checked: see [Validate].
func KeyOf(obj runtime.Object) (Key, error) {
	kind, err := KindOf(obj)
	if err != nil {
		return Key{}, err
	}
	if reflect.ValueOf(obj).IsNil() {
		return Key{}, fmt.Errorf("%s is nil: %w", kind.Kind, ErrInvalid)
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return Key{}, fmt.Errorf("%T has no metadata: %w", obj, ErrInvalid)
	}
	return Key{Kind: kind, Namespace: meta.GetNamespace(), Name: meta.GetName()}, nil
}

// NewScheme returns a new scheme of apimachinery that knows [Kinds], for codecs.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, k := range knownKinds {
		scheme.AddKnownTypeWithName(k.kind, k.object)
	}
	return scheme
}

func kindNames() string {
	names := make([]string, 0, len(knownKinds))
	for _, k := range knownKinds {
		names = append(names, k.kind.Kind)
	}
	return strings.Join(names, ", ")
}
