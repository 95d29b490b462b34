package cluster

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Options are the hooks that a state of the cluster calls after changes. The zero value has none. Hooks are called with no
// lock held and must return soon. They may also be called when a repeated report changed nothing.
type Options struct {
	// Changed is called after each change of what is wanted or known of a volume on a node.
	Changed func(volumeName v1.UniqueVolumeName, nodeName types.NodeName)
	// ReportChanged is called when the report of a node has changed. Only the actual state calls it.
	ReportChanged func(nodeName types.NodeName)
}

func (o *Options) changed(keys ...attachmentKey) {
	if o.Changed == nil {
		return
	}
	for _, key := range keys {
		o.Changed(key.volume, key.node)
	}
}

func (o *Options) reportChanged(name types.NodeName) {
	if o.ReportChanged != nil {
		o.ReportChanged(name)
	}
}
