package csiserver

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// A volume without a record of its attachment was detached before, or the record is lost with StateDir. Only the plugin knows which.
// The methods in this file ask it, so that no volume is reported as detached that is still attached.

// of returns the attachments of a volume to a node, or to all nodes if node is empty: those on record, else those that the plugin
// knows. If neither says whether the volume is attached, the error has the code NOT_FOUND, by which a caller does not count it as
// detached.
func (s *attachments) of(ctx context.Context, id string, node types.NodeName) ([]attachment, error) {
	recorded := slices.DeleteFunc(s.state.attachmentsOf(id), func(a attachment) bool { return node != "" && a.Node != node })
	if len(recorded) > 0 {
		return recorded, nil
	}
	a, spec, err := s.unrecorded(id)
	if err != nil {
		return nil, notKnown(id)
	}
	nodes, err := s.nodesByPlugin(ctx, id, spec, node)
	if err != nil {
		return nil, err
	}
	var found []attachment
	for _, a.Node = range nodes {
		s.logger.Warn("a volume is attached and not on record: it is detached", "volume", id, "node", a.Node)
		found = append(found, a)
	}
	return found, nil
}

func notKnown(id string) error {
	return status.Errorf(codes.NotFound, "volume %s is on no record, and the plugin does not say whether it is attached: check the id, and detach the volume by hand if it is",
		volume.Quote(id))
}

// unrecorded returns an attachment of a volume to no node yet: with the source on record, else that of a volume that was made by hand.
func (s *attachments) unrecorded(id string) (attachment, *volume.Spec, error) {
	o, err := s.originOfContext(id, nil)
	if v, ok := s.state.byID(id); ok {
		o = originOf(v.PV)
	}
	if err != nil {
		return attachment{}, nil, err
	}
	a := attachment{ID: id, Origin: o, Capability: capability{
		Block: o.Block != nil && *o.Block, Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	}}
	spec, err := s.specOf(id, o, use{capability: a.Capability})
	return a, spec, err
}

// nodesByPlugin returns the nodes to which a volume is attached by the plugin's word: the given one, or all if that is empty.
func (s *attachments) nodesByPlugin(ctx context.Context, id string, spec *volume.Spec, node types.NodeName) ([]types.NodeName, error) {
	plugin, ok := s.plugin.(volume.AttachableVolumePlugin)
	if !ok {
		return nil, unimplemented("ControllerUnpublishVolume")
	}
	if node == "" {
		return s.allNodesByPlugin(ctx, plugin, id, spec)
	}
	name, err := volume.GetUniqueVolumeNameFromSpec(plugin, spec)
	if err != nil {
		return nil, err
	}
	attacher, err := plugin.NewAttacher()
	if err != nil {
		return nil, err
	}
	answer, err := attacher.VolumesAreAttached(ctx, map[v1.UniqueVolumeName]*volume.Spec{name: spec}, node)
	attached, told := answer[name]
	switch {
	case errors.Is(err, volume.ErrInfeasible) && !outcome.IsUncertain(err):
		return nil, nil // No volume is ever attached to that node.
	case err != nil:
		return nil, volume.Transient(err)
	case attached:
		return []types.NodeName{node}, nil
	case !told:
		return s.nodeOfOwn(id, node)
	}
	return nil, nil
}

// nodeOfOwn returns the node of a volume of which the plugin says nothing. To detach a volume that this server has made is safe where it is
// not attached.
func (s *attachments) nodeOfOwn(id string, node types.NodeName) ([]types.NodeName, error) {
	if _, ok := s.state.byID(id); ok {
		return []types.NodeName{node}, nil
	}
	if s.state.deleted.has(id) {
		return nil, nil
	}
	return nil, notKnown(id)
}

// allNodesByPlugin returns the nodes of a volume from the plugin's list. Without a list, a volume that this server has made counts as
// detached where no record says otherwise.
func (s *attachments) allNodesByPlugin(
	ctx context.Context, plugin volume.AttachableVolumePlugin, id string, spec *volume.Spec,
) ([]types.NodeName, error) {
	lister, ok := plugin.(volume.AttachmentLister)
	if !ok {
		if _, made := s.state.byID(id); made || s.state.deleted.has(id) {
			return nil, nil
		}
		return nil, notKnown(id)
	}
	name, err := plugin.GetVolumeName(spec)
	if err != nil {
		return nil, err
	}
	all, err := lister.ListAttachments(ctx)
	if err != nil {
		return nil, volume.Transient(err)
	}
	var nodes []types.NodeName
	for _, a := range all {
		if a.VolumeName == name {
			nodes = append(nodes, a.NodeName)
		}
	}
	return nodes, nil
}

// maxDeleted is how many volumes deletedVolumes has at most.
const maxDeleted = 1024

// deletedVolumes are the ids of the last volumes that this server has deleted since its start. They were attached nowhere: a call that
// detaches them is a repeated one. The zero value is empty.
type deletedVolumes struct {
	mu  sync.Mutex
	ids []string // the oldest first
}

func (d *deletedVolumes) add(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ids) == maxDeleted {
		d.ids = slices.Delete(d.ids, 0, 1)
	}
	d.ids = append(d.ids, id)
}

func (d *deletedVolumes) has(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.ids, id)
}

// remove removes the record of a volume that was deleted.
func (s *stateRecords) remove(v volumeRecord) error {
	if err := s.volumes.Remove(v.Name); err != nil {
		return err
	}
	s.deleted.add(v.ID)
	return nil
}
