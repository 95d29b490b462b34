package volumetest

import (
	"errors"
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			return fake.NewPlugin(fake.PluginOptions{Mounter: mounter, Backend: backend, Reuse: true, Without: without})
		},
		NewSpec:           fakeSpec,
		Shared:            true,
		Lifetime:          LifetimeOfStaging,
		MutableParameters: fakeAttributes(),
		Attributes:        attributesIn(backend),
	}
}

// fakeAttributes are two sets of attributes that the fake plugin knows.
func fakeAttributes() [2]map[string]string {
	return [2]map[string]string{
		{fake.ParameterIOPS: "100", fake.ParameterTier: "slow"},
		{fake.ParameterIOPS: "9000", fake.ParameterTier: "fast"},
	}
}

// attributesIn looks at the storage of the fake plugin.
func attributesIn(backend *fake.Backend) func(testing.TB, *volume.Spec) map[string]string {
	return func(_ testing.TB, spec *volume.Spec) map[string]string {
		driver, _ := spec.Driver()
		return backend.Attributes(driver.Handle)
	}
}

func TestFakePluginOverTheKernelKeepsTheContract(t *testing.T) {
	mounttest.RequireMounts(t)
	config := fakeConfig(Yielding(mount.New(mount.Options{})), 0)
	config.Require = volume.AllCapabilities &^ volume.CapGroupSnapshot // The files of a machine are not read at one moment.
	Run(t, config)
}

func TestFakePluginOverTheFakeMounterKeepsTheContract(t *testing.T) {
	for name, arrange := range map[string]struct {
		without volume.Capabilities
		change  func(*Config)
	}{
		"whole": {0, func(c *Config) { c.Require = volume.AllCapabilities }},
		// The fake plugin knows of attachments alone, so that what is mounted without one could be deleted.
		"without attach":  {volume.CapAttach | volume.CapDelete, nil},
		"without staging": {volume.CapDeviceMount | volume.CapAttach | volume.CapClone | volume.CapSnapshot | volume.CapDelete, func(c *Config) { c.Shared, c.Lifetime = false, LifetimeOfPod }},
		"of the pod's own": {0, func(c *Config) {
			c.NewSpec, c.Shared, c.Lifetime = InlineSpec("fake.example.com"), false, LifetimeOfPod
		}},
		"provisioned": {0, func(c *Config) { c.NewSpec = nil }},
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

// The benchmarks run, once each, over whatever a plugin can do; one that fails measures nothing.
func TestBenchmarksRun(t *testing.T) {
	once(t)
	run := func(without volume.Capabilities, fault fake.Fault) (measured bool) {
		world := fake.NewMounter(fake.MounterOptions{})
		world.Inject(fake.MethodMount, fault)
		config := fakeConfig(world, without)
		config.World, config.RootDir = world, "/node"
		testing.Benchmark(func(b *testing.B) {
			RunBenchmarks(b, config)
			measured = !b.Failed() && len(world.Calls()) > 0
		})
		return measured
	}
	sound := fake.Fault{Effect: fake.EffectDone}
	assert.True(t, run(0, sound))
	assert.True(t, run(volume.CapAttach|volume.CapDeviceMount|volume.CapClone|volume.CapSnapshot, sound))
	assert.False(t, run(0, fake.FailN(-1, errors.New("planned"))))
}

// once makes benchmarks run once until the test ends.
func once(t *testing.T) {
	t.Helper()
	benchtime := flag.Lookup("test.benchtime")
	before := benchtime.Value.String()
	require.NoError(t, benchtime.Value.Set("1x"))
	t.Cleanup(func() { require.NoError(t, benchtime.Value.Set(before)) })
}
