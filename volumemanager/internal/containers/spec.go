package containers

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/sentinel"
)

// This file reads the volume mounts and devices that a container asks for. It reads only the pod.

// Find returns a container of any kind: init, ordinary or ephemeral.
func Find(pod *v1.Pod, name string) (c *v1.Container, ok bool) {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		if i := slices.IndexFunc(containers, func(c v1.Container) bool { return c.Name == name }); i >= 0 {
			return &containers[i], true
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &c, true
		}
	}
	return nil, false
}

// Check returns every fault of each container of a pod; see checkContainer.
func Check(pod *v1.Pod) []error {
	var errs []error
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			errs = append(errs, checkContainer(&containers[i]))
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		errs = append(errs, checkContainer(&c))
	}
	return errs
}

// checkContainer returns every fault in the volumeMounts and volumeDevices of a container. It does not look at the pod's
// volumes. Each error matches [volume.ErrInvalid].
func checkContainer(c *v1.Container) error {
	var errs []error
	targets := make(map[string]string)
	add := func(name, target string, err error) {
		if err == nil {
			target, err = cleanTarget(target)
		}
		if other, taken := targets[target]; err == nil && taken {
			err = fmt.Errorf("%q is the place of volume %q, too: give each its own: %w", target, other, volume.ErrInvalid)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container %q, volume %q: %w", c.Name, name, err))
			return
		}
		targets[target] = name
	}
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		add(m.Name, m.MountPath, checkVolumeMount(c, m))
	}
	for _, d := range c.VolumeDevices {
		add(d.Name, d.DevicePath, nil)
	}
	return errors.Join(errs...)
}

// cleanTarget returns the cleaned path of a mount or device in the container. The path must be absolute and contain no "..".
// It must not be the container's root.
func cleanTarget(target string) (string, error) {
	clean := path.Clean(target)
	switch {
	case !path.IsAbs(target), strings.ContainsRune(target, 0), clean == "/":
		return "", fmt.Errorf("%q: give an absolute path beneath the container's root: %w", target, volume.ErrInvalid)
	case slices.Contains(strings.Split(target, "/"), ".."):
		return "", fmt.Errorf("%q: give a path without \"..\": %w", target, volume.ErrInvalid)
	}
	return clean, nil
}

func checkVolumeMount(c *v1.Container, m *v1.VolumeMount) error {
	if m.SubPath != "" && m.SubPathExpr != "" {
		return fmt.Errorf("it has a subPath and a subPathExpr: give one of them: %w", volume.ErrInvalid)
	}
	if m.SubPath != "" && !IsWholeVolume(m.SubPath) {
		if _, err := safepath.CleanSubpath(m.SubPath); err != nil {
			return sentinel.OfPath(err)
		}
	}
	propagation, err := Propagation(c, m)
	if err != nil {
		return err
	}
	return checkRecursiveReadOnly(m, propagation)
}

// IsWholeVolume reports whether a sub-path, such as "." or "./", means the volume's root. As in Kubernetes, that counts as
// no sub-path.
func IsWholeVolume(subPath string) bool {
	return strings.HasPrefix(subPath, ".") && strings.Trim(subPath, "./") == "" && !strings.Contains(subPath, "..")
}

// Propagation returns the propagation of a mount; None if the mount sets none.
func Propagation(c *v1.Container, m *v1.VolumeMount) (v1.MountPropagationMode, error) {
	if m.MountPropagation == nil {
		return v1.MountPropagationNone, nil
	}
	switch mode := *m.MountPropagation; mode {
	case v1.MountPropagationNone, v1.MountPropagationHostToContainer:
		return mode, nil
	case v1.MountPropagationBidirectional:
		if s := c.SecurityContext; s == nil || s.Privileged == nil || !*s.Privileged {
			return "", fmt.Errorf("mountPropagation %s is for privileged containers: %w", mode, volume.ErrInvalid)
		}
		return mode, nil
	default:
		return "", fmt.Errorf("mountPropagation %q is not known: %w", mode, volume.ErrInvalid)
	}
}

// checkRecursiveReadOnly refuses recursiveReadOnly where it could not hold: on a writable mount, or on one to which mounts
// propagate.
func checkRecursiveReadOnly(m *v1.VolumeMount, propagation v1.MountPropagationMode) error {
	switch mode := RecursiveReadOnly(m); mode {
	case v1.RecursiveReadOnlyDisabled:
		return nil
	case v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled:
		if !m.ReadOnly {
			return fmt.Errorf("recursiveReadOnly %s without readOnly: %w", mode, volume.ErrInvalid)
		}
		if propagation != v1.MountPropagationNone {
			return fmt.Errorf("recursiveReadOnly %s with mountPropagation %s: %w", mode, propagation, volume.ErrInvalid)
		}
		return nil
	default:
		return fmt.Errorf("recursiveReadOnly %q is not known: %w", mode, volume.ErrInvalid)
	}
}

// RecursiveReadOnly returns the recursiveReadOnly mode of a mount; Disabled if the mount sets none.
func RecursiveReadOnly(m *v1.VolumeMount) v1.RecursiveReadOnlyMode {
	if m.RecursiveReadOnly == nil {
		return v1.RecursiveReadOnlyDisabled
	}
	return *m.RecursiveReadOnly
}
