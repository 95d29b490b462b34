package populator

import (
	"errors"
	"fmt"
	"iter"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
)

// Validate checks a pod before the manager reads or does anything for it: its names and UID, the names of its volumes, the
// references of containers to volumes, and what containers ask of them. It returns all faults. Each matches
// [volume.ErrInvalid] or [volume.ErrUnsupported].
func Validate(pod *v1.Pod) error {
	if pod == nil {
		return fmt.Errorf("pod is nil: %w", volume.ErrInvalid)
	}
	var errs []error
	for _, field := range []struct{ name, value string }{
		{"metadata.name", pod.Name}, {"metadata.namespace", pod.Namespace}, {"metadata.uid", string(pod.UID)},
	} {
		if err := volume.CheckPathElement(field.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field.name, err))
		}
	}
	errs = append(errs, validateVolumes(pod)...)
	errs = append(errs, validateContainers(pod)...)
	errs = append(errs, validateUses(pod)...)
	errs = append(errs, containers.Check(pod)...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pod %q: %w", store.NameOf(pod), err)
	}
	return nil
}

func validateVolumes(pod *v1.Pod) []error {
	var errs []error
	seen := make(map[string]struct{})
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		if err := volume.CheckPathElement(name); err != nil {
			errs = append(errs, fmt.Errorf("spec.volumes[%d]: %w", i, err))
		}
		if _, ok := seen[name]; ok {
			errs = append(errs, fmt.Errorf("spec.volumes[%d]: the name %q is used twice: %w", i, name, volume.ErrInvalid))
		}
		seen[name] = struct{}{}
	}
	return errs
}

// validateContainers refuses two containers of any kind with the same name. One of them would otherwise get the other's
// mounts.
func validateContainers(pod *v1.Pod) []error {
	var errs []error
	seen := make(map[string]struct{})
	for c := range containersOf(pod) {
		if _, ok := seen[c.name]; ok {
			errs = append(errs, fmt.Errorf("two containers have the name %q: give each its own: %w", c.name, volume.ErrInvalid))
		}
		seen[c.name] = struct{}{}
	}
	return errs
}

func validateUses(pod *v1.Pod) []error {
	var errs []error
	named := make(map[string]struct{})
	for i := range pod.Spec.Volumes {
		named[pod.Spec.Volumes[i].Name] = struct{}{}
	}
	for c := range containersOf(pod) {
		for _, m := range c.mounts {
			if _, ok := named[m.Name]; !ok {
				errs = append(errs, fmt.Errorf("container %q mounts volume %q, which is not in spec.volumes: %w",
					c.name, m.Name, volume.ErrInvalid))
			}
		}
		for _, d := range c.devices {
			if _, ok := named[d.Name]; !ok {
				errs = append(errs, fmt.Errorf("container %q uses device %q (volumeDevices), which is not in spec.volumes: %w",
					c.name, d.Name, volume.ErrInvalid))
			}
		}
	}
	return append(errs, validateModes(pod)...)
}

// validateModes refuses a volume that containers both mount and use as a device.
func validateModes(pod *v1.Pod) []error {
	var errs []error
	mounting, mapping := usersOf(pod)
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		if mounting[name] != "" && mapping[name] != "" {
			errs = append(errs, fmt.Errorf("container %q mounts volume %q (volumeMounts) and container %q uses it as a device (volumeDevices): choose one: %w",
				mounting[name], name, mapping[name], volume.ErrInvalid))
		}
	}
	return errs
}

// container holds what the manager reads of a container of any kind.
type container struct {
	name     string
	mounts   []v1.VolumeMount
	devices  []v1.VolumeDevice
	security *v1.SecurityContext
}

// containersOf yields the init, ordinary and ephemeral containers of pod.
func containersOf(pod *v1.Pod) iter.Seq[container] {
	return func(yield func(container) bool) {
		s := &pod.Spec
		for _, of := range [...][]v1.Container{s.InitContainers, s.Containers} {
			for i := range of {
				c := &of[i]
				if !yield(container{name: c.Name, mounts: c.VolumeMounts, devices: c.VolumeDevices, security: c.SecurityContext}) {
					return
				}
			}
		}
		for i := range s.EphemeralContainers {
			c := &s.EphemeralContainers[i].EphemeralContainerCommon
			if !yield(container{name: c.Name, mounts: c.VolumeMounts, devices: c.VolumeDevices, security: c.SecurityContext}) {
				return
			}
		}
	}
}

// usersOf returns, for each outer name of a volume, the first container that mounts it and the first that uses it as a
// device.
func usersOf(pod *v1.Pod) (mounting, mapping map[string]string) {
	mounting, mapping = make(map[string]string), make(map[string]string)
	for c := range containersOf(pod) {
		for i := range c.mounts {
			keepFirst(mounting, c.mounts[i].Name, c.name)
		}
		for i := range c.devices {
			keepFirst(mapping, c.devices[i].Name, c.name)
		}
	}
	return mounting, mapping
}

func keepFirst(by map[string]string, name, container string) {
	if _, ok := by[name]; !ok {
		by[name] = container
	}
}
