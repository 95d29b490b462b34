package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// mountLabel returns the SELinux context with which a pod wants the volume of o mounted; empty means none. That is the
// label of the containers that use it, if the plugin can mount with a context, the pod does not ask for relabelling
// (seLinuxChangePolicy: Recursive), and the volume is one of those that are mounted so. Containers that disagree about
// such a volume are an error.
func (o *AddPodOptions) mountLabel(facts pluginFacts, which SELinuxMount) (string, error) {
	if len(o.SELinuxLabels) == 0 || !facts.seLinuxMount || !which.covers(o.VolumeSpec) || o.relabels() {
		return "", nil
	}
	label := o.SELinuxLabels[0]
	for _, other := range o.SELinuxLabels[1:] {
		if other != label {
			podName := volume.GetUniquePodName(o.Pod)
			return "", &SELinuxConflictError{
				VolumeName: o.VolumeSpec.Name(), PodName: podName, Label: other, OtherPodName: podName, OtherLabel: label,
			}
		}
	}
	return label, nil
}

// relabels reports whether the pod asks for its volumes to be relabelled file by file.
func (o *AddPodOptions) relabels() bool {
	sc := o.Pod.Spec.SecurityContext
	return sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive
}

// SELinuxMount says which volumes are mounted with the SELinux context of their pods, rather than relabelled. Such a
// volume cannot be used with two contexts at once. Volumes that are inline in a pod never are.
type SELinuxMount uint8

// The choices.
const (
	// SELinuxMountOncePod is the default: PersistentVolumes whose one access mode is ReadWriteOncePod.
	SELinuxMountOncePod SELinuxMount = iota
	// SELinuxMountAll: every PersistentVolume.
	SELinuxMountAll
)

func (m SELinuxMount) covers(spec *volume.Spec) bool {
	if spec.PersistentVolume == nil {
		return false
	}
	modes := spec.PersistentVolume.Spec.AccessModes
	return m == SELinuxMountAll || len(modes) == 1 && modes[0] == v1.ReadWriteOncePod
}

// conflict returns an error when another pod wants v with another label than w does.
func (v *wantedVolume) conflict(w *want) error {
	for _, other := range v.pods {
		if other.PodName == w.PodName {
			continue
		}
		if other.SELinuxLabel != w.SELinuxLabel {
			return &SELinuxConflictError{
				VolumeName: w.VolumeSpec.Name(), PodName: w.PodName, Label: w.SELinuxLabel,
				OtherPodName: other.PodName, OtherLabel: other.SELinuxLabel,
			}
		}
		return nil // All others agree.
	}
	return nil
}
