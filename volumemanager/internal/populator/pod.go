package populator

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
)

// Pod is one pod that was added. It never changes: an update makes a new Pod. Its methods may be called on nil, which stands
// for an unknown pod.
type Pod struct {
	// Pod is a copy of those parts of the pod that the manager uses.
	Pod *v1.Pod
	// Volumes are the volumes that containers use. Most pods have only a few.
	Volumes []Volume
}

// Volume is one volume of a pod, as it was last resolved successfully.
type Volume struct {
	// Outer is the volume's name in the pod's spec.
	Outer string
	// Name is the unique name; empty if resolving has never succeeded. Plugin is the name of the volume's plugin.
	Name   v1.UniqueVolumeName
	Plugin string
	// ReadOnly says that the pod wants the volume read-only under this name.
	ReadOnly bool
	// Err is why the last attempt to resolve the volume failed; nil if it succeeded.
	Err error
	// Wanted is since when the pod wants a volume of this outer name, Resolved since when it is known which one that is; zero
	// while it is not.
	Wanted, Resolved time.Time
}

// isComplete reports whether every volume has been resolved at least once. Only then is it known which volumes the pod does
// not use.
func (p *Pod) isComplete() bool {
	return !slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Name == "" })
}

// isResolved reports whether the last attempt has resolved every volume.
func (p *Pod) isResolved() bool {
	return !slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Err != nil })
}

// since notes since when the volumes are wanted and resolved: as the pod was before, or else from now on.
func (p *Pod) since(old *Pod, now time.Time) {
	for i := range p.Volumes {
		v, had := &p.Volumes[i], old.Volume(p.Volumes[i].Outer)
		v.Wanted, v.Resolved = had.Wanted, had.Resolved
		if v.Wanted.IsZero() {
			v.Wanted = now
		}
		switch {
		case v.Name == "":
			v.Resolved = time.Time{}
		case v.Name != had.Name:
			v.Resolved = now
		}
	}
}

// Volume returns the pod's volume with an outer name; the zero value if there is none.
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

// OuterNames returns the outer names under which the pod has a mounted volume now. They may differ from the names in
// mounted: those are from the time of the set-up. For an unknown pod it returns the names in mounted.
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

// without returns the resolved volumes of the pod that another pod does not use. A volume that the pod has under two names
// may appear twice.
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
