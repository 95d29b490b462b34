package operationexecutor

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// This file holds what operations read from pods and volumes.

// singlePod reports whether only one pod may use the volume.
func singlePod(spec *volume.Spec) bool {
	if spec == nil || spec.PersistentVolume == nil {
		return false
	}
	modes := spec.PersistentVolume.Spec.AccessModes
	return len(modes) == 1 && modes[0] == v1.ReadWriteOncePod
}

// commonUser returns the user as which every container of pod runs, or nil when there is no such user.
func commonUser(pod *v1.Pod) *int64 {
	var user *int64
	for _, containers := range [...][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			runAs := containerUser(pod, &containers[i])
			if runAs == nil || user != nil && *user != *runAs {
				return nil
			}
			user = runAs
		}
	}
	return user
}

func containerUser(pod *v1.Pod, c *v1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return c.SecurityContext.RunAsUser
	}
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext.RunAsUser
	}
	return nil
}

func podKey(pod *v1.Pod) types.NamespacedName {
	if pod == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// podOf returns the pod of v, or one that holds no more than its UID.
func podOf(v *VolumeToMount) *v1.Pod {
	if v.Pod != nil {
		return v.Pod
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(v.PodName)}}
}

// fsGroup returns the group that the pod's volumes are given to, or nil.
func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
