package volumemanager

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// LostData says that data which was written to a volume may be lost, as its filesystem told before it was unmounted. The
// unmount itself does not tell.
type LostData struct {
	// Volume is the unique name.
	Volume v1.UniqueVolumeName
	// PodUID is the UID of the pod for which it was set up; empty when it was staged for several.
	PodUID types.UID
	// At is when that was found out.
	At time.Time
	// Err is what the filesystem has said.
	Err error
}

// lostDataOf returns what is told of data that may be lost.
func lostDataOf(found []health.LostData) []LostData {
	var lost []LostData
	for _, d := range found {
		lost = append(lost, LostData{Volume: d.Key.Volume, PodUID: types.UID(d.Key.Pod), At: d.At, Err: d.Err})
	}
	return lost
}
