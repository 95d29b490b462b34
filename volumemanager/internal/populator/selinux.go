package populator

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/store"
)

// Labels returns the label that files must have for a container to use them; see volumemanager.SELinuxLabels.
type Labels interface {
	// FileLabel returns the label for a container with these options; empty if it is not known before the container starts.
	FileLabel(options *v1.SELinuxOptions) (string, error)
}

// labelsOf returns the sorted labels of the containers of pod that use a volume. It leaves out privileged containers, which
// are not confined, and containers without options, whose labels are not known yet.
func labelsOf(labels Labels, pod *v1.Pod, vol *v1.Volume) ([]string, error) {
	if labels == nil {
		return nil, nil
	}
	found := sets.New[string]()
	for c := range containersOf(pod) {
		options := c.seLinuxOptions(pod)
		if options == nil || !c.uses(vol.Name) {
			continue
		}
		label, err := labels.FileLabel(options)
		if err != nil {
			return nil, fmt.Errorf("SELinux options of container %q: %w", c.name, err)
		}
		if label != "" {
			found.Insert(label)
		}
	}
	return sets.List(found), nil
}

// seLinuxOptions returns the effective options of a container; nil if it has none or is privileged.
func (c container) seLinuxOptions(pod *v1.Pod) *v1.SELinuxOptions {
	own, ofPod := c.security, pod.Spec.SecurityContext
	switch {
	case own != nil && own.Privileged != nil && *own.Privileged:
		return nil
	case own != nil && own.SELinuxOptions != nil:
		return own.SELinuxOptions
	case ofPod != nil:
		return ofPod.SELinuxOptions
	}
	return nil
}

// uses reports whether the container mounts a volume or has it as a device.
func (c container) uses(volumeName string) bool {
	for _, m := range c.mounts {
		if m.Name == volumeName {
			return true
		}
	}
	for _, d := range c.devices {
		if d.Name == volumeName {
			return true
		}
	}
	return false
}

// volumeKey is the key for a pod that waits until another pod releases a volume. No object of a store has such a key.
func volumeKey[N ~string](name N) store.Key { return store.Key{Name: string(name)} }
