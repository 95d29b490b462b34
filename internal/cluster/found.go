package cluster

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file holds what fills the actual state at start-up from what an earlier process left.

// RecoverNode adds a node and what its status says: each volume that it lists as attached is uncertain, with its path, until
// something succeeds on it, and goes on to be listed until it is doubted or withdrawn. What the node uses is not taken over: whoever
// knows that the node itself has written the list calls [ActualStateOfWorld.SetVolumesInUse]; until then all is assumed in use.
// What is known already is never overwritten; what the status lists and the state does not is to be withdrawn. An entry that
// cannot be taken over is an error; all others are taken over nevertheless.
func (a *ActualStateOfWorld) RecoverNode(node *v1.Node) error {
	name := types.NodeName(node.Name)
	a.AddNode(name, node.UID)
	var errs []error
	for _, at := range node.Status.VolumesAttached {
		n := attachmentNews{key: attachmentKey{name, at.Name}, devicePath: at.DevicePath, inStatus: true}
		if err := a.mark(found, &n); err != nil {
			errs = append(errs, fmt.Errorf("node %q: a volume that its status lists as attached: %w", name, err))
			continue
		}
		a.reconcileReport(n.key)
	}
	return errors.Join(errs...)
}

// reconcileReport notes that the status of a node lists a volume of which it is not to be told.
func (a *ActualStateOfWorld) reconcileReport(key attachmentKey) {
	a.mu.Lock()
	var told toldOf
	node, row := a.nodes[key.node], a.find(key)
	if node != nil && (row == nil || !row.Reported) {
		told.report = a.reportChange(node, key.volume)
	}
	a.mu.Unlock()
	a.tell(key, told)
}

// RecoverAttachment adds an attachment that something else than the node's status tells of, such as a VolumeAttachment: it
// is uncertain. VolumeName, or VolumeSpec, and NodeName are required. What is known already is never overwritten, but what
// at says is filled in where it is missing: so a volume that was found without its spec is given it. nodeUID is the UID that
// the node had when it was attached, and empty when that is not known: a node that has another one now is assumed to use it,
// as [ActualStateOfWorld.AddNode] says.
func (a *ActualStateOfWorld) RecoverAttachment(at operationexecutor.AttachedVolume, nodeUID types.UID) error {
	n := attachmentNews{key: attachmentKey{at.NodeName, at.VolumeName}, spec: at.VolumeSpec, devicePath: at.DevicePath, uid: nodeUID}
	return a.mark(found, &n)
}

// SetVolumeSpec gives an attachment that was found without one its spec, which a plugin needs to be asked about it. It does
// nothing for one that is not known or has a spec.
func (a *ActualStateOfWorld) SetVolumeSpec(volumeName v1.UniqueVolumeName, nodeName types.NodeName, spec *volume.Spec) {
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) {
		if row.VolumeSpec == nil {
			row.VolumeSpec = spec
		}
	})
}
