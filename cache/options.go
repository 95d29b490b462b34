package cache

import v1 "k8s.io/api/core/v1"

// Options says how a state of the world tells of its changes, and what it watches over. The zero value tells nobody.
type Options struct {
	// Changed is called after each change of a volume's rows, with no lock held, and must return soon. It may be
	// called for a call that repeats what is known.
	Changed func(volumeName v1.UniqueVolumeName)
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
