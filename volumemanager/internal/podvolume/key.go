// Package podvolume has the key of a volume as a pod has it.
package podvolume

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Key identifies a volume as a pod has it. Without a pod it identifies the volume as a whole: its staging and its
// attachment.
type Key struct {
	// Volume is the unique name of the volume; Pod is the unique name of the pod.
	Volume v1.UniqueVolumeName
	Pod    volume.UniquePodName
}
