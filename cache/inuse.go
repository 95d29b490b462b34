package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// VolumesInUse returns the attachable volumes that are used on this node, sorted: what the node's status has to list, and
// what a controller must not detach. A volume counts from the moment in which a pod wants it until it is forgotten, which
// is after its last set-up and its staging are gone for certain: what is uncertain counts, and what is being staged does.
//
// A volume that is used all the time while this runs is listed, even when it passes from the one state to the other.
func VolumesInUse(desired *DesiredStateOfWorld, actual *ActualStateOfWorld) []v1.UniqueVolumeName {
	names := desired.GetAttachableVolumeNames()
	names = append(names, actual.GetAttachableVolumeNames()...)
	// Once more: one that was only known may be only wanted by now.
	names = append(names, desired.GetAttachableVolumeNames()...)
	slices.Sort(names)
	return slices.Compact(names)
}
