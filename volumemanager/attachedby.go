package volumemanager

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/nodestatus"
)

// AttachedBy says who attaches volumes to a node and detaches them.
type AttachedBy uint8

// A node that has volumes may safely change from one to the other: the node itself detaches what it has attached itself.
const (
	// AttachedByNode: the manager attaches and detaches, through the plugins.
	AttachedByNode AttachedBy = iota
	// AttachedByController: a controller attaches and detaches. It lists the attached volumes, with the path of each device,
	// in the status of the node's object in the store (status.volumesAttached). The manager never attaches or detaches.
	// Before it mounts a volume, it makes the node's status list the volume as in use (status.volumesInUse). It removes the
	// volume from that list only when it is certain that nothing of the volume is left on the node; until then a controller
	// must not detach it. Options.Store is required.
	//
	// The list of an earlier manager stays until PodsComplete, and longer if records were damaged. Without records
	// (Options.NoRecords) the manager does not know what the earlier one left mounted: such volumes leave the list with
	// PodsComplete.
	AttachedByController
)

// checkAttachment returns an error for wrong options about attaching.
func (o Options) checkAttachment() error {
	switch {
	case o.AttachedBy > AttachedByController:
		return fmt.Errorf("AttachedBy %d: give one of its constants: %w", o.AttachedBy, volume.ErrInvalid)
	case o.AttachedBy == AttachedByController && o.Store == nil:
		return fmt.Errorf("AttachedByController needs Store, where the node's status tells what is attached: %w", volume.ErrInvalid)
	case o.AttachedBy != AttachedByController && o.VolumesInUse != nil:
		return fmt.Errorf("VolumesInUse is set, but the node attaches its volumes itself and reports none: set AttachedBy to AttachedByController: %w", volume.ErrInvalid)
	}
	return nil
}

// VolumesInUseReporter writes the list of volumes that this node uses to the node's status, if a controller attaches
// volumes. It is for orchestrators that write the status of their nodes themselves.
type VolumesInUseReporter interface {
	// ReportVolumesInUse returns nil when the node's status, where the controller reads it, lists exactly these volumes as
	// in use. They are sorted. The manager mounts nothing from a volume before that. An error that matches
	// [ErrReportedLater] promises a later call of Manager.MarkVolumesAsReportedInUse, when the status has the list. After
	// any other error the manager calls again. It makes one call at a time, whenever the list may have changed, and possibly
	// with the same list again.
	ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error
}

// ErrReportedLater says that the reporter has accepted the list of volumes in use, but the node's status does not show it
// yet.
var ErrReportedLater = nodestatus.ErrReportedLater
