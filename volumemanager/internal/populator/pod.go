package populator

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
)

// Pod is one pod that was added. It never changes: an update makes a new one. The methods may be called on nil, a pod that is not
// known.
type Pod struct {
	// Pod is a copy of what is used of the pod.
	Pod *v1.Pod
	// Volumes are those that containers use. Few pods have more than a few.
	Volumes []Volume
}

// Volume is one volume of a pod, as it was resolved the last time that that worked.
type Volume struct {
	// Outer is the name in the pod's spec.
	Outer string
	// Name is the unique name; empty when resolving it never worked. Plugin is the name of its plugin.
	Name   v1.UniqueVolumeName
	Plugin string
	// ReadOnly says that the pod asks for read-only under this name.
	ReadOnly bool
	// Err is why it could not be resolved the last time; nil when it could.
	Err error
}

// isComplete reports whether every volume has been resolved at least once, so that what is not wanted is known.
func (p *Pod) isComplete() bool {
	return !slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Name == "" })
}

// isResolved reports whether every volume was resolved the last time.
func (p *Pod) isResolved() bool {
	return !slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Err != nil })
}

// Volume returns one volume of the pod; the zero value when there is none.
func (p *Pod) Volume(outer string) Volume {
	if p == nil {
		return Volume{}
	}
	for _, v := range p.Volumes {
		if v.Outer == outer {
			return v
		}
	}
	return Volume{}
}

// Uses reports whether the pod uses a volume.
func (p *Pod) Uses(name v1.UniqueVolumeName) bool {
	return p != nil && slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Name == name })
}

// OuterNames returns the outer names by which the pod has a volume now: those with which it was set up are the pod's as it was then.
// A pod that is not known has those.
func (p *Pod) OuterNames(mounted *cache.MountedVolume) []string {
	if p == nil {
		return mounted.OuterVolumeSpecNames
	}
	var names []string
	for _, v := range p.Volumes {
		if v.Name == mounted.VolumeName {
			names = append(names, v.Outer)
		}
	}
	return names
}

// without returns the volumes of the pod that another one does not use, as far as they are resolved. One that the pod has under two
// names may be there twice.
func (p *Pod) without(other *Pod) []v1.UniqueVolumeName {
	if p == nil {
		return nil
	}
	var names []v1.UniqueVolumeName
	for _, v := range p.Volumes {
		if v.Name != "" && !other.Uses(v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}
