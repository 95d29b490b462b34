package ram

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func TestConformance(t *testing.T) {
	mounttest.RequireMounts(t)
	source := v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "ram.example.com"}}
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return &Plugin{Mounter: mount.New(mount.Options{})} },
		NewSpec: func(testing.TB) *volume.Spec {
			return volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: source})
		},
	})
}
