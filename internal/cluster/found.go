package cluster

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file fills the actual state at start-up with what an earlier process made.

// RecoverNode adds a node and the attachments in its status. Each attachment is uncertain until a call for it succeeds, and
// stays in the node's report until it becomes uncertain or is withdrawn. RecoverNode ignores the volumes in use, because the node
// itself may not have written that list. All its volumes are assumed to be in use until
// [ActualStateOfWorld.SetVolumesInUse] is called. Existing knowledge is never overwritten, and a volume that the status
// lists and the state does not is withdrawn. If an entry is invalid, RecoverNode adds the others and returns an error.
func (a *ActualStateOfWorld) RecoverNode(node *v1.Node) error {
	name := types.NodeName(node.Name)
	a.AddNode(name, node.UID)
	var errs []error
	for _, at := range node.Status.VolumesAttached {
		n := attachmentChange{key: attachmentKey{name, at.Name}, devicePath: at.DevicePath, inStatus: true}
		if err := a.mark(found, &n); err != nil {
			errs = append(errs, fmt.Errorf("node %q: a volume that its status lists as attached: %w", name, err))
			continue
		}
		a.reconcileReport(n.key)
	}
	return errors.Join(errs...)
}

// reconcileReport records that a volume must be withdrawn from the status of a node, if the status lists it and the report
// does not.
func (a *ActualStateOfWorld) reconcileReport(key attachmentKey) {
	a.mu.Lock()
	var calls hookCalls
	node, row := a.table.nodes[key.node], a.table.find(key)
	if node != nil && (row == nil || !row.Reported) {
		calls.report = a.table.reportChange(node, key.volume)
	}
	a.mu.Unlock()
	a.callHooks(key, calls)
}

// RecoverAttachment adds an uncertain attachment from another source than the node's status, such as a VolumeAttachment.
// NodeName, and VolumeName or VolumeSpec, are required. Existing knowledge is never overwritten, but missing fields, such
// as the spec, are filled in from at. nodeUID is the UID of the node when the volume was attached, or empty if it is not
// known. If the node has another UID now, it is assumed to use the volume, as [ActualStateOfWorld.AddNode] describes.
func (a *ActualStateOfWorld) RecoverAttachment(at operationexecutor.AttachedVolume, nodeUID types.UID) error {
	n := attachmentChange{key: attachmentKey{at.NodeName, at.VolumeName}, spec: at.VolumeSpec, devicePath: at.DevicePath, uid: nodeUID}
	return a.mark(found, &n)
}

// SetVolumeSpec sets the spec of an attachment that was found without one. A plugin needs the spec to check the attachment.
// It does nothing for an unknown attachment, or one that has a spec.
func (a *ActualStateOfWorld) SetVolumeSpec(volumeName v1.UniqueVolumeName, nodeName types.NodeName, spec *volume.Spec) {
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) {
		if row.VolumeSpec == nil {
			row.VolumeSpec = spec
		}
	})
}
