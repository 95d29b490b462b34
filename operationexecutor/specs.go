package operationexecutor

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// This file holds what operations read from pods and volumes.

// isBlock reports whether pods get the volume as a device. A volume whose mode does not exist is left to the mount, which
// says so.
func isBlock(spec *volume.Spec) bool {
	mode, err := volume.GetVolumeMode(spec)
	return err == nil && mode == v1.PersistentVolumeBlock
}

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
	return strangePod(v.PodName)
}

// strangePod is a function of its own so that no caller has a pod on its stack, which is large: see executeAlone.
//
//go:noinline
func strangePod(name volume.UniquePodName) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}}
}

// fsGroup returns the group that the pod's volumes are given to, or nil.
func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
