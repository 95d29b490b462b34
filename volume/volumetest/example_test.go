package volumetest_test

import (
	"testing"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// testConformance is all of a plugin's conformance test; in your own package it is called TestConformance, and fake.NewPlugin
// is the constructor of your plugin. What outlives a restart, here the world and the backend, is made outside of NewPlugin.
func testConformance(t *testing.T) {
	world, backend := fake.NewMounter(fake.MounterOptions{}), fake.NewBackend()
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			return fake.NewPlugin(fake.PluginOptions{Mounter: volumetest.Yielding(world), Backend: backend})
		},
		NewSpec: volumetest.InlineSpec("fake.example.com"),
		World:   world,
		Require: volume.CapReconstruct,
		// Only a plugin with volume.CapModify needs these.
		MutableParameters: [2]map[string]string{{fake.ParameterTier: "slow"}, {fake.ParameterTier: "fast"}},
	})
}

// A plugin's conformance test, which needs neither root nor a mount of the machine's own. docs/writing-a-plugin.md has the
// plugin to it.
func ExampleRun() {
	_ = testConformance // go test runs it, under the name of TestConformance
}
