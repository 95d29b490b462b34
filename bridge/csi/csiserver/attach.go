package csiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// attachments are volumes that are attached, or may be, on record. Its methods are called by who has the volume's lock.
type attachments struct {
	*resolved
	*records
}

// ControllerPublishVolume attaches a volume to a node.
func (c *controller) ControllerPublishVolume(
	ctx context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if !c.attachesByController() {
		return nil, unimplemented("ControllerPublishVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := csispec.CheckID("node_id", r.GetNodeId(), csispec.MaxNodeID); err != nil {
		return nil, err
	}
	wanted, err := c.supported(r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	a := attachment{ID: r.GetVolumeId(), Node: types.NodeName(r.GetNodeId()), Capability: wanted, ReadOnly: r.GetReadonly()}
	if a.Origin, err = c.attachments.originOfVolume(a.ID, r.GetVolumeContext()); err != nil {
		return nil, err
	}
	err = c.locks.exclusively(ctx, idLock(a.ID), func() error {
		a, err = c.attachments.attach(ctx, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext(a)}, nil
}

func publishContext(a attachment) map[string]string {
	var context map[string]string
	if a.Device != "" {
		context = withKey(context, deviceKey, a.Device)
	}
	if a.ReadOnly {
		context = withKey(context, readOnlyKey, "true")
	}
	return context
}

// originOfVolume is what is on record of a volume, or else what its context says.
func (s *attachments) originOfVolume(id string, context map[string]string) (origin, error) {
	v, ok := s.state.byID(id)
	switch {
	case !ok:
		return s.originOfContext(id, context)
	case v.Step == deleting:
		return origin{}, status.Errorf(codes.FailedPrecondition, "volume %s is being deleted", volume.Quote(id))
	}
	return originOf(v.PV), nil
}

// checkOthers returns an error if the volume has an attachment beside which it cannot be attached so.
func (s *attachments) checkOthers(a attachment) error {
	for _, other := range s.state.attachmentsOf(a.ID) {
		switch {
		case other.Node != a.Node && (!a.Capability.onManyNodes() || !other.Capability.onManyNodes()):
			return status.Errorf(codes.FailedPrecondition, "volume %s is attached to node %q: detach it there first", volume.Quote(a.ID), other.Node)
		case other.Node == a.Node && other.Done && (other.ReadOnly != a.ReadOnly || !other.Capability.is(a.Capability)):
			return status.Errorf(codes.AlreadyExists, "volume %s is attached to node %q otherwise than it is asked for", volume.Quote(a.ID), a.Node)
		}
	}
	for _, other := range s.state.attachments.Where(a.isAlias) {
		return status.Errorf(codes.FailedPrecondition, "volume %s is attached to node %q with the id %s: detach that first",
			volume.Quote(a.ID), a.Node, volume.Quote(other.ID))
	}
	return nil
}

// isAlias reports whether other is the same attachment under another id: to detach one would detach both.
func (a attachment) isAlias(other attachment) bool {
	return other.ID != a.ID && other.Node == a.Node && reflect.DeepEqual(other.Origin.Source, a.Origin.Source)
}

// attach attaches a volume, or returns the attachment that is there.
func (s *attachments) attach(ctx context.Context, a attachment) (attachment, error) {
	if err := s.checkOthers(a); err != nil {
		return a, err
	}
	spec, err := s.specOf(a.ID, a.Origin, use{capability: a.Capability, readOnly: a.ReadOnly})
	if err != nil {
		return a, err
	}
	plugin, ok := s.plugin.(volume.AttachableVolumePlugin)
	if !ok {
		return a, unimplemented("ControllerPublishVolume")
	}
	attacher, err := plugin.NewAttacher()
	if err != nil {
		return a, err
	}
	before, known := s.state.attachments.Get(attachmentKey(a.ID, a.Node))
	if !before.Done {
		if err := s.state.attachments.Put(attachmentKey(a.ID, a.Node), a); err != nil {
			return a, volume.Transient(err)
		}
	}
	a.Device, err = attacher.Attach(ctx, spec, a.Node)
	if err != nil {
		if before.Done {
			return a, volume.Uncertain(err)
		}
		undo := func() error {
			undoing := detachSpec(ctx, plugin, spec, a.Node)
			if !known && errors.Is(err, volume.ErrNotFound) {
				return nil // Nothing is attached to a node, or of a volume, that never was: a driver need not know it in Detach.
			}
			return undoing
		}
		return a, s.notAttached(a, undo, err)
	}
	a.Done = true
	if before.Done && before.Device == a.Device {
		return a, nil
	}
	if err := s.state.attachments.Put(attachmentKey(a.ID, a.Node), a); err != nil {
		return a, volume.Uncertain(err)
	}
	return a, nil
}

// notAttached proves that a volume of which Attach has failed is not attached, and forgets it. Callers take most codes for that
// proof, and any error of Attach leaves it open: without the proof the record stays, and the error is uncertain.
func (s *attachments) notAttached(a attachment, undo func() error, err error) error {
	limited := errors.Is(err, volume.ErrAttachLimit) && outcome.DoneOf(err) == nil
	if outcome.IsUncertain(err) && !limited {
		return err
	}
	if !refused(err) || outcome.IsUncertain(err) {
		if undoing := undo(); undoing != nil {
			return volume.Uncertain(fmt.Errorf("%w; it is not known to be detached: %w", err, undoing))
		}
	}
	if removing := s.state.attachments.Remove(attachmentKey(a.ID, a.Node)); removing != nil {
		return volume.Uncertain(errors.Join(err, removing))
	}
	if elsewhere := errors.Is(err, volume.ErrInfeasible) && a.Node != s.options.NodeName; elsewhere || errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.NotFound, "volume %s and node %q: %v", volume.Quote(a.ID), a.Node, err)
	}
	if limited { // also where a driver's word for it left open what else it did
		return status.Errorf(codes.ResourceExhausted, "volume %s and node %q: %v", volume.Quote(a.ID), a.Node, err)
	}
	return err
}

// ControllerUnpublishVolume detaches a volume from a node, or from all.
func (c *controller) ControllerUnpublishVolume(
	ctx context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !c.attachesByController() {
		return nil, unimplemented("ControllerUnpublishVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	err := c.locks.exclusively(ctx, idLock(r.GetVolumeId()), func() error {
		all, err := c.attachments.of(ctx, r.GetVolumeId(), types.NodeName(r.GetNodeId()))
		for _, a := range all {
			if err := c.attachments.detach(ctx, a); err != nil {
				return err
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// detach undoes an attachment and forgets it.
func (s *attachments) detach(ctx context.Context, a attachment) error {
	if err := s.checkUnusedHere(ctx, a); err != nil {
		return err
	}
	plugin, ok := s.plugin.(volume.AttachableVolumePlugin)
	if !ok {
		return unimplemented("ControllerUnpublishVolume")
	}
	spec, err := s.specOf(a.ID, a.Origin, use{capability: a.Capability, readOnly: a.ReadOnly})
	if err != nil && a.Done {
		return fmt.Errorf("volume %s cannot be detached: %w", volume.Quote(a.ID), err)
	}
	if err == nil {
		if err := detachSpec(ctx, plugin, spec, a.Node); err != nil {
			return err
		}
	}
	if err := s.state.attachments.Remove(attachmentKey(a.ID, a.Node)); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

func detachSpec(ctx context.Context, plugin volume.AttachableVolumePlugin, spec *volume.Spec, node types.NodeName) error {
	name, err := plugin.GetVolumeName(spec)
	if err != nil {
		return err
	}
	detacher, err := plugin.NewDetacher()
	if err != nil {
		return err
	}
	return detacher.Detach(ctx, name, node)
}

// checkUnusedHere returns an error if this node, which a controller detaches the volume from, still uses it: by the record of its staging, or
// by the mounts if RuntimeDir is lost.
func (s *attachments) checkUnusedHere(ctx context.Context, a attachment) error {
	if s.runtime == nil || a.Node != s.options.NodeName || s.options.Attach != AttachByController {
		return nil
	}
	if st, ok := s.runtime.stagings.Get(a.ID); ok {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not detached: it is staged at %q", volume.Quote(a.ID), st.Path)
	}
	path, err := s.mountedHere(ctx, a)
	if err == nil && path != "" {
		err = status.Errorf(codes.FailedPrecondition, "volume %s is not detached: it has no record in RuntimeDir, and is mounted at %q: unpublish and unstage it",
			volume.Quote(a.ID), path)
	}
	return err
}
