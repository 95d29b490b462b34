package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// VolumesInUse returns the attachable volumes that are used on this node, sorted. The node's status must list them, and a
// controller must not detach them. A volume counts from the moment when a pod wants it until the state forgets it, which is
// after its last set-up and its staging are certainly gone. So a volume counts while it is being staged, and while any of
// this is uncertain.
//
// A volume that is used during the whole call is listed, even if it passes from one state to the other meanwhile.
func VolumesInUse(desired *DesiredStateOfWorld, actual *ActualStateOfWorld) []v1.UniqueVolumeName {
	names := desired.attachableVolumeNames()
	names = append(names, actual.attachableVolumeNames()...)
	// Again: a volume may have passed from the actual state to the desired one between the two reads.
	names = append(names, desired.attachableVolumeNames()...)
	slices.Sort(names)
	return slices.Compact(names)
}
