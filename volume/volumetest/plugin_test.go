package volumetest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// fakeSpec returns a PersistentVolume of the fake plugin, of storage of its own.
func fakeSpec(testing.TB) *volume.Spec {
	name := "pv-" + nextID()
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: "fake.example.com", VolumeHandle: name},
		}},
	}, false)
}

// fakeConfig tests the fake plugin over a mounter, with storage that all its values share.
func fakeConfig(mounter mount.Interface, without volume.Capabilities) Config {
	backend := fake.NewBackend()
	return Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			return fake.NewPlugin(fake.PluginOptions{Mounter: mounter, Backend: backend, Without: without})
		},
		NewSpec: fakeSpec,
		Shared:  true,
	}
}

func TestFakePluginOverTheKernelKeepsTheContract(t *testing.T) {
	mounttest.RequireMounts(t)
	config := fakeConfig(Unsteady(mount.New(mount.Options{})), 0)
	config.Require = volume.AllCapabilities
	Run(t, config)
}

func TestFakePluginOverTheFakeMounterKeepsTheContract(t *testing.T) {
	for name, arrange := range map[string]struct {
		without volume.Capabilities
		change  func(*Config)
	}{
		"whole":            {0, func(c *Config) { c.Require = volume.AllCapabilities }},
		"without attach":   {volume.CapAttach, nil},
		"without staging":  {volume.CapDeviceMount | volume.CapAttach | volume.CapClone, func(c *Config) { c.Shared = false }},
		"of the pod's own": {0, func(c *Config) { c.NewSpec, c.Shared = InlineSpec("fake.example.com"), false }},
		"provisioned":      {0, func(c *Config) { c.NewSpec = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			world := fake.NewMounter(fake.MounterOptions{})
			config := fakeConfig(world, arrange.without)
			config.World, config.RootDir = world, "/node"
			if arrange.change != nil {
				arrange.change(&config)
			}
			Run(t, config)
		})
	}
}

func BenchmarkFakePlugin(b *testing.B) {
	world := fake.NewMounter(fake.MounterOptions{})
	config := fakeConfig(world, 0)
	config.World, config.RootDir = world, "/node"
	RunBenchmarks(b, config)
}
