package mount_test

import (
	"testing"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	playHelper()
	mounttest.Main(m)
}

// variants are the kernels that the tests pretend to run on. That without fanotify is one of Watch, which alone has a use
// for it.
var variants = map[string]mount.Feature{
	"all system calls":      0,
	"without openat2":       mount.FeatureOpenat2,
	"without mount_setattr": mount.FeatureMountSetattr,
	"without statx":         mount.FeatureStatxMountRoot,
	"without statmount":     mount.FeatureStatmount,
	"all fall-backs":        mount.AllFeatures,
}

func TestSuite(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, without := range variants {
		t.Run(name, func(t *testing.T) {
			mounttest.Run(t, mounttest.Config{New: func(testing.TB) (mount.Interface, mounttest.World) {
				return mount.New(mount.Options{Without: without}), mounttest.Kernel()
			}})
		})
	}
}
