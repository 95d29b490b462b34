package manifest

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// imageFSType is loopblock's default filesystem.
const imageFSType = "ext4"

// LeftOut is a volume that this machine does not support.
type LeftOut struct {
	// Pod is the pod's namespace and name, Volume the name in its spec.
	Pod    string `json:"pod"`
	Volume string `json:"volume"`
	// Plugin is the name of the volume's plugin.
	Plugin string `json:"plugin"`
	// Reason says what is missing.
	Reason string `json:"reason"`
}

// Prune removes the volumes that this machine does not support from the pods and their containers, and then the unused
// claims from m. obstacle says why this machine does not support filesystems in image files, or is nil.
func (m *Set) Prune(obstacle func(fsType string) error) []LeftOut {
	var out []LeftOut
	for _, pod := range m.Pods {
		for _, v := range slices.Clone(pod.Spec.Volumes) {
			fsType, ok := m.imageFilesystem(pod, &v)
			if !ok {
				continue
			}
			if err := obstacle(fsType); err != nil {
				removeVolume(pod, v.Name)
				out = append(out, LeftOut{
					Pod: pod.Namespace + "/" + pod.Name, Volume: v.Name, Plugin: loopblock.Name, Reason: err.Error(),
				})
			}
		}
	}
	if len(out) > 0 {
		m.Claims = slices.DeleteFunc(m.Claims, func(c *v1.PersistentVolumeClaim) bool { return !m.isUsed(c) })
	}
	return out
}

// imageFilesystem reports whether a pod's volume will be an image file on a loop device, and returns its filesystem.
// The images are new: the root directory is empty at first.
func (m *Set) imageFilesystem(pod *v1.Pod, v *v1.Volume) (fsType string, ok bool) {
	if v.PersistentVolumeClaim == nil {
		return "", false
	}
	claim := m.claimOf(pod, v)
	class := named(m.Classes, m.className(claim))
	if claim.Spec.VolumeName != "" || class == nil || class.Provisioner != loopblock.Name {
		return "", false
	}
	return cmp.Or(class.Parameters[volume.VolumeParameterFSType], imageFSType), true
}

func (m *Set) isUsed(claim *v1.PersistentVolumeClaim) bool {
	for _, pod := range m.Pods {
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.PersistentVolumeClaim != nil && m.claimOf(pod, v) == claim {
				return true
			}
		}
	}
	return false
}

// removeVolume removes a volume from pod and its containers.
func removeVolume(pod *v1.Pod, name string) {
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
		}
	}
}

// String names the volume and the reason in one line.
func (l LeftOut) String() string {
	return fmt.Sprintf("left out volume %s of pod %s: %s", l.Volume, l.Pod, l.Reason)
}
