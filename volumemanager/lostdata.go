package volumemanager

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// LostData says that data which was written to a volume may be lost. The manager learns this from the volume's filesystem
// before the unmount, because the unmount itself does not report it.
type LostData struct {
	// Volume is the unique name of the volume.
	Volume v1.UniqueVolumeName
	// PodUID is the UID of the pod for which the volume was set up; empty for a staged volume, which several pods may share.
	PodUID types.UID
	// At is when the loss was found.
	At time.Time
	// Err is the error of the filesystem.
	Err error
}

// lostDataOf converts the losses that package health has kept.
func lostDataOf(found []health.LostData) []LostData {
	var lost []LostData
	for _, d := range found {
		lost = append(lost, LostData{Volume: d.Key.Volume, PodUID: types.UID(d.Key.Pod), At: d.At, Err: d.Err})
	}
	return lost
}
