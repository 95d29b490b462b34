package cluster

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// The sentinels of the cluster side. Match them with errors.Is.
var (
	// ErrNotAttached says that a volume is not, and may not be, attached to the node.
	ErrNotAttached = errors.New("volume is not attached to the node")
	// ErrNodeUnknown says that there is no such node, or that the node of that name is another one than was meant.
	ErrNodeUnknown = errors.New("node is not known")
	// ErrAttaching says that an attempt to attach the volume to the node is going on: wait for its end.
	ErrAttaching = errors.New("volume is being attached to the node")
	// ErrDetaching says that the volume is being taken from the node: wait until it is detached, or restored.
	ErrDetaching = errors.New("volume is being detached from the node")
	// ErrAttachLimit says that the node has as many volumes as it can have: see [AttachLimitError].
	ErrAttachLimit = volume.ErrAttachLimit
)

// AttachLimitError says that a node has as many volumes of a plugin as it can have. It matches [ErrAttachLimit].
type AttachLimitError struct {
	// NodeName and PluginName say where.
	NodeName   types.NodeName
	PluginName string
	// Limit is how many it can have; Count is how many are, may be or are being attached.
	Limit, Count int
}

// Error names the node, the plugin and both numbers.
func (e *AttachLimitError) Error() string {
	return fmt.Sprintf("%v: node %q has %d volumes of plugin %q and can have %d: it waits until one is detached",
		ErrAttachLimit, e.NodeName, e.Count, e.PluginName, e.Limit)
}

// Unwrap returns the sentinel.
func (e *AttachLimitError) Unwrap() error { return ErrAttachLimit }

// NodeUsesVolumeError says that a node uses a volume, or is assumed to, and so does not lose it. It matches
// volume.ErrInUse.
type NodeUsesVolumeError struct {
	// VolumeName and NodeName say which volume of which node.
	VolumeName v1.UniqueVolumeName
	NodeName   types.NodeName
	// InUse is what is known of that use.
	InUse UseState
}

// Error names the volume, the node and the use.
func (e *NodeUsesVolumeError) Error() string {
	return fmt.Sprintf("volume %q is %v on node %q: it can be detached when the node says that it no longer uses it, or when a forced detach is allowed",
		e.VolumeName, e.InUse, e.NodeName)
}

// Unwrap returns volume.ErrInUse.
func (e *NodeUsesVolumeError) Unwrap() error { return volume.ErrInUse }

// nodeUnknown says which node is not known, or what it is instead.
func nodeUnknown(name types.NodeName, wanted, is types.UID) error {
	if wanted == "" || is == "" || wanted == is {
		return fmt.Errorf("node %q: %w: add it first", name, ErrNodeUnknown)
	}
	return fmt.Errorf("node %q with UID %q: %w: the node of that name has UID %q now", name, wanted, ErrNodeUnknown, is)
}
