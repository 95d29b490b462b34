package cluster

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachRequest says which volume is to be attached to which node. VolumeSpec and NodeName are required.
type AttachRequest struct {
	// VolumeName is the unique name of the volume; empty means that it is asked of the plugin.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume.
	VolumeSpec *volume.Spec
	// NodeName is the node.
	NodeName types.NodeName
	// NodeUID is the UID of the node that is meant; empty means whichever has that name.
	NodeUID types.UID
	// AttachLimit is how many volumes of the plugin the node can have; zero means as many as there are.
	AttachLimit int
}

// AttachAttempt is one attempt to attach a volume to a node, to that very node and not to one that takes its name. It is
// the state that the executor's AttachVolume is to be given. End it when the operation has ended, or did not begin.
type AttachAttempt struct {
	*ActualStateOfWorld
	key attachmentKey
	uid types.UID
}

var (
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = (*AttachAttempt)(nil)
	_ operationexecutor.VolumeNodes                       = (*AttachAttempt)(nil)
)

// BeginAttach reserves a place for a volume on a node before the attach. From then on the place counts for the node's
// limit, and the node counts as having the volume. This is one step, so of two concurrent calls at most one gets the last
// place, and at most one gets a volume that only one node may have. The error matches:
//
//   - operationexecutor.MultiAttachError: others have, may have or are about to have the volume. It says who.
//   - [AttachLimitError]: the node has no room.
//   - [ErrNodeUnknown]: there is no such node, or it is another one.
//   - [ErrAttaching], [ErrDetaching]: wait until that has ended.
//
// A volume that is, or may be, attached to the node has its place already, so every attempt on it begins. The executor runs
// one of them at a time.
func (a *ActualStateOfWorld) BeginAttach(r AttachRequest) (*AttachAttempt, error) {
	n := attachmentChange{key: attachmentKey{r.NodeName, r.VolumeName}, spec: r.VolumeSpec, uid: r.NodeUID, limit: r.AttachLimit}
	if r.VolumeSpec == nil {
		return nil, fmt.Errorf("volume %q: a spec is required: %w", r.VolumeName, volume.ErrInvalid)
	}
	if err := a.name(&n); err != nil {
		return nil, err
	}
	attempt := &AttachAttempt{ActualStateOfWorld: a, key: n.key}
	n.attempt = attempt
	a.mu.Lock()
	calls, err := a.table.transition(begun, &n)
	if err == nil {
		attempt.uid = a.table.nodes[r.NodeName].uid
	}
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a.callHooks(n.key, calls)
	return attempt, nil
}

// MarkVolumeAsAttached is that of the state, but for the node that was meant: when another one has taken its name
// meanwhile, the error matches [ErrNodeUnknown].
func (t *AttachAttempt) MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName, devicePath string) error {
	n := attachmentChange{key: attachmentKey{nodeName, volumeName}, spec: spec, devicePath: devicePath}
	if nodeName == t.key.node {
		n.uid = t.uid
	}
	return t.mark(succeeded, &n)
}

// NodesOfVolume implements operationexecutor.VolumeNodes. The place that the attempt itself has taken does not count while
// nothing has come of it: nothing was there before.
func (t *AttachAttempt) NodesOfVolume(name v1.UniqueVolumeName) []types.NodeName {
	if name == t.key.volume && t.AttachState(name, t.key.node) == Attaching {
		return t.OtherNodesOfVolume(name, t.key.node)
	}
	return t.ActualStateOfWorld.NodesOfVolume(name)
}

// End releases the place if the attempt attached nothing. A volume that is, or may be, attached stays. End may be called twice.
func (t *AttachAttempt) End() {
	_ = t.update(ended, &attachmentChange{key: t.key, attempt: t}) // Nothing is refused.
}
