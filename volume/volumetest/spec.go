package volumetest

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// InlineSpec returns a Config.NewSpec for a plugin that has no field of its own in k8s.io/api: each call makes a volume of a
// pod's own whose csi driver is driver, under a name that no other has.
func InlineSpec(driver string) func(t testing.TB) *volume.Spec {
	return func(testing.TB) *volume.Spec {
		return volume.NewSpecFromVolume(&v1.Volume{
			Name:         "inline-" + nextID(),
			VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}},
		})
	}
}
