package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Options says how a state of the world tells of its changes, and what it watches over. The zero value tells nobody.
type Options struct {
	// Changed is called after each change of a volume's rows, with no lock held, and must return soon. It may be
	// called for a call that repeats what is known.
	Changed func(volumeName v1.UniqueVolumeName)
	// PodChanged, if not nil, is called by the desired state in place of Changed, when only what one pod wants of the volume has
	// changed.
	PodChanged func(volumeName v1.UniqueVolumeName, podName volume.UniquePodName)
	// SELinuxMount says which volumes the desired state wants mounted with an SELinux context.
	SELinuxMount SELinuxMount
}

func (o Options) changed(names ...v1.UniqueVolumeName) {
	if o.Changed == nil {
		return
	}
	for _, name := range names {
		o.Changed(name)
	}
}

func (o Options) podChanged(podName volume.UniquePodName, names ...v1.UniqueVolumeName) {
	if o.PodChanged == nil {
		o.changed(names...)
		return
	}
	for _, name := range names {
		o.PodChanged(name, podName)
	}
}
