package loopblock_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestConformance(t *testing.T) {
	mounttest.RequireRoot(t)
	requireTool(t, "ext4")
	images := filepath.Join(t.TempDir(), "images")
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return loopblock.New(loopblock.Options{BaseDir: images}) },
		MutableParameters: [2]map[string]string{
			{loopblock.ParameterDirectIO: "true", loopblock.ParameterReadAhead: "1Mi"},
			{loopblock.ParameterDirectIO: "false", loopblock.ParameterReadAhead: "64Ki"},
		},
		Attributes: attributesIn(images),
		Shared:     true,
		Lifetime:   volumetest.LifetimeOfStorage,
		FSGroup:    true,
		Require: volume.CapPersistent | volume.CapProvision | volume.CapDelete | volume.CapAttach |
			volume.CapDeviceMount | volume.CapMountOptions | volume.CapReconstruct | volume.CapBlock |
			volume.CapExpand | volume.CapNodeExpand | volume.CapClone | volume.CapModify |
			volume.CapSnapshot | volume.CapListSnapshots | volume.CapGroupSnapshot |
			volume.CapCapacity,
	})
}

// requireTool skips where a filesystem cannot be made, and fails under CI.
func requireTool(t testing.TB, fsType string) {
	t.Helper()
	err := format.CanMake(fsType)
	if err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing, and under CI nothing is skipped: %v", err)
	}
	t.Skipf("missing: %v", err)
}
