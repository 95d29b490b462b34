// Package podvolume names a volume as a pod has it.
package podvolume

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Key is a volume as a pod has it, or, without a pod, the volume as a whole: as it is staged and attached.
type Key struct {
	// Volume is the unique name, Pod that of the pod.
	Volume v1.UniqueVolumeName
	Pod    volume.UniquePodName
}
