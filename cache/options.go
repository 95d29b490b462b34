package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Options are the options of a state of the world. The zero value reports no changes.
type Options struct {
	// Changed is called after each change of a volume's rows. It is called with no lock held and must return soon. It may
	// also be called when a repeated report changed nothing.
	Changed func(volumeName v1.UniqueVolumeName)
	// PodChanged, if not nil, is called instead of Changed if a change of the desired state concerns only one pod's use of the volume.
	PodChanged func(volumeName v1.UniqueVolumeName, podName volume.UniquePodName)
	// SELinuxMount decides which volumes the desired state wants mounted with an SELinux context.
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
