package populator

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file compares what a pod wants now with what it was given. Nothing is swapped under a pod that runs, and nothing that
// it asks for is ignored.

// ErrVolumeChanged matches the refusal to change a volume under the name that a pod has it by: its source, its read-only
// flag, or the group that its files belong to. Remove the pod and add it again.
var ErrVolumeChanged = errors.New("a volume that a pod has cannot change")

// refuses returns an error when pod asks for another source, read-only flag or group of a volume that it has. old may be nil.
func (p *Populator) refuses(old *Pod, pod *v1.Pod, answers []resolution) error {
	if old == nil {
		return nil
	}
	var errs []error
	for _, a := range answers {
		if what := p.changeOf(old, pod, a); what != "" {
			errs = append(errs, fmt.Errorf("volume %q of pod %q: its %s is another one now: remove the pod and add it again: %w: %w",
				a.Outer, store.NameOf(pod), what, ErrVolumeChanged, volume.ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// changeOf returns what pod asks for in another way of a volume that it has, or "". Of a volume that it keeps although its claim cannot
// be resolved, only the group is known.
func (p *Populator) changeOf(old *Pod, pod *v1.Pod, a resolution) string {
	had, sameGroup := p.specOf(old, a), equality.Semantic.DeepEqual(fsGroupOf(old.Pod), fsGroupOf(pod))
	switch {
	case !sameGroup && old.Volume(a.Outer).Name != "" && p.keeps(old, pod, a) != nil:
		return "fsGroup"
	case had == nil:
		return ""
	case a.want.VolumeSpec.Volume != nil && !equality.Semantic.DeepEqual(had.Volume, a.want.VolumeSpec.Volume):
		return "source"
	case a.want.VolumeSpec.ReadOnly != had.ReadOnly:
		return "read-only flag"
	case !sameGroup:
		return "fsGroup"
	default:
		return ""
	}
}

// specOf returns the spec by which the pod has the volume that a resolution found, and nil when it does not have it.
func (p *Populator) specOf(old *Pod, a resolution) *volume.Spec {
	if a.Err != nil || !old.Uses(a.Name) {
		return nil
	}
	row, ok := p.options.Desired.VolumeToMount(a.Name, volume.GetUniquePodName(old.Pod))
	if !ok || (row.VolumeSpec.Volume == nil) != (a.want.VolumeSpec.Volume == nil) {
		return nil
	}
	return row.VolumeSpec
}

// keeps returns why a volume of the pod has to stay what it was, or nil. It stays as long as the pod asks for the same, when
// that could not be resolved, and when the claim, or its PersistentVolume, means another volume now. A pod that asks for another
// source does not have it yet, also while that cannot be resolved: it must not be told ready with the old one.
func (p *Populator) keeps(old *Pod, pod *v1.Pod, a resolution) error {
	same := old == nil || equality.Semantic.DeepEqual(sourceOf(old.Pod, a.Outer), sourceOf(pod, a.Outer))
	if a.Err != nil && !same {
		return nil // It is an error of the new volume, which the pod does not have yet.
	}
	if a.Err != nil {
		return a.Err
	}
	had := old.Volume(a.Outer).Name
	if had == "" {
		return nil
	}
	if had == a.Name {
		return p.keepsVolume(old, pod, a)
	}
	if !same {
		return nil
	}
	return fmt.Errorf("volume %q of pod %q: its claim is bound to another volume now, and the pod has %q: remove the pod to change it: %w",
		a.Outer, store.NameOf(pod), had, ErrClaimNotReady)
}

// keepsVolume returns an error when the PersistentVolume that the pod has says something else now.
func (p *Populator) keepsVolume(old *Pod, pod *v1.Pod, a resolution) error {
	had := p.specOf(old, a)
	if had == nil || had.PersistentVolume == nil {
		return nil
	}
	before, now := &had.PersistentVolume.Spec, &a.want.VolumeSpec.PersistentVolume.Spec
	what := ""
	switch {
	case had.Name() != a.want.VolumeSpec.Name():
		what = "name" // It is part of the path.
	case !equality.Semantic.DeepEqual(before.PersistentVolumeSource, now.PersistentVolumeSource):
		what = "source"
	case !slices.Equal(before.MountOptions, now.MountOptions):
		what = "mountOptions"
	case volume.IsBlock(had) != volume.IsBlock(a.want.VolumeSpec):
		what = "volumeMode"
	default:
		return nil
	}
	return fmt.Errorf("volume %q of pod %q: the %s of PersistentVolume %q is another one now, and the pod has what it was: remove the pod to change it: %w: %w",
		a.Outer, store.NameOf(pod), what, a.want.VolumeSpec.Name(), ErrVolumeChanged, ErrClaimNotReady)
}

func fsGroupOf(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
