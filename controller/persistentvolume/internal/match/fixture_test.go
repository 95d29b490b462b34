package match

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

func newClaim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: ptr(""),
			Resources:        v1.VolumeResourceRequirements{Requests: size("1Gi")},
		},
	}
	for _, f := range change {
		f(claim)
	}
	return claim
}

func newVolume(name string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:    size("1Gi"),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: name,
			}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	for _, f := range change {
		f(pv)
	}
	return pv
}

func ptr[T any](v T) *T { return &v }

func size(s string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)}
}

// refTo makes a volume name a claim; uid may be empty.
func refTo(name string, uid types.UID) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: uid}
	}
}

func ofClass(name string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &name }
}

func volumeAnnotation(key, value string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { metav1.SetMetaDataAnnotation(&pv.ObjectMeta, key, value) }
}

func claimed(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func asks(s string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(s) }
}

func holds(s string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size(s) }
}
