package store

import (
	"errors"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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

var (
	errIncompleteKind = errors.New("give its group, its version and its name")
	errKindType       = errors.New("its object must be a pointer to a struct")
	errKindTwice      = errors.New("there is a kind of that name or Go type already")
)

// Kinds returns every kind that each store keeps, sorted by name.
func Kinds() []schema.GroupVersionKind { return (*KindTable)(nil).Kinds() }

// KindOf returns the kind of obj by its Go type, whatever its TypeMeta says. A type that is none of [Kinds] is an error
// that matches [ErrInvalid].
func KindOf(obj runtime.Object) (schema.GroupVersionKind, error) {
	return (*KindTable)(nil).KindOf(obj)
}

// Namespaced reports whether objects of kind live in a namespace. A kind that is none of [Kinds] is an error that matches
// [ErrInvalid].
func Namespaced(kind schema.GroupVersionKind) (bool, error) {
	return (*KindTable)(nil).Namespaced(kind)
}

// KeyOf returns the key of obj. The error matches [ErrInvalid] when its type is none of [Kinds] or obj is nil; its name is
// not checked: see [Validate].
func KeyOf(obj runtime.Object) (Key, error) { return (*KindTable)(nil).KeyOf(obj) }

// NewScheme returns a new scheme of apimachinery that knows [Kinds], for codecs.
func NewScheme() *runtime.Scheme { return (*KindTable)(nil).NewScheme() }
