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

// Who attaches. To change from one to the other on a node that has volumes is safe: what the node has attached by itself
// it detaches by itself.
const (
	// AttachedByNode: the manager does, through the plugins.
	AttachedByNode AttachedBy = iota
	// AttachedByController: a controller does, and says so in the status of the node's object in the store
	// (status.volumesAttached), with the path of each device. The manager never attaches or detaches. Before it mounts a
	// volume it has the node's status list it as in use (status.volumesInUse), and it takes it from that list only when
	// nothing is left of it here for certain; until then a controller must not detach it. Needs Options.Store.
	//
	// The list of an earlier manager stays until PodsComplete, and beyond it where records were damaged. Without
	// records (Options.NoRecords) what that manager left mounted is not known, and leaves the list with PodsComplete.
	AttachedByController
)

// checkAttachment says what is wrong with the options about attaching.
func (o Options) checkAttachment() error {
	switch {
	case o.AttachedBy > AttachedByController:
		return fmt.Errorf("AttachedBy %d: give one of its constants: %w", o.AttachedBy, volume.ErrInvalid)
	case o.AttachedBy == AttachedByController && o.Store == nil:
		return fmt.Errorf("AttachedByController needs Store, where the node's status tells what is attached: %w", volume.ErrInvalid)
	case o.AttachedBy != AttachedByController && o.VolumesInUse != nil:
		return fmt.Errorf("VolumesInUse is set, but the node attaches by itself and reports to nobody: set AttachedBy: %w", volume.ErrInvalid)
	}
	return nil
}

// VolumesInUseReporter has the node's status list the volumes that the node uses, where a controller attaches. It is for
// orchestrators that write the status of their nodes themselves.
type VolumesInUseReporter interface {
	// ReportVolumesInUse returns nil when the node's status, where the controller reads it, lists volumes as in use and no
	// others; they are sorted. Nothing is mounted from a volume before that. An error that matches [ErrReportedLater] says
	// that Manager.MarkVolumesAsReportedInUse will be called when it does; after any other one it is called again. The calls
	// are made one after the other, each time the list may have changed, also with a list that is still there.
	ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error
}

// ErrReportedLater says that the list of volumes in use was taken and is not in the node's status yet.
var ErrReportedLater = nodestatus.ErrReportedLater
