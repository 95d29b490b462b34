package ram

import (
	"testing"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func TestConformance(t *testing.T) {
	mounttest.RequireMounts(t)
	newPlugin := func(testing.TB) volume.VolumePlugin { return &Plugin{Mounter: mount.New(mount.Options{})} }
	volumetest.Run(t, volumetest.Config{NewPlugin: newPlugin, NewSpec: volumetest.InlineSpec("ram.example.com")})
}
