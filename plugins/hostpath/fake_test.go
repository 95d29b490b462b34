package hostpath

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestConformanceOnFakes(t *testing.T) {
	world := fake.NewMounter(fake.MounterOptions{})
	made := 0
	for name, newSpec := range map[string]func(testing.TB) *volume.Spec{
		"given": func(t testing.TB) *volume.Spec {
			made++
			path := fmt.Sprintf("/volumes/data-%d", made)
			require.NoError(t, world.MkdirAll(path, 0o755))
			return spec(path, v1.HostPathDirectory)
		},
		"made by SetUp": func(testing.TB) *volume.Spec {
			made++
			return spec(fmt.Sprintf("/volumes/new-%d", made), v1.HostPathDirectoryOrCreate)
		},
		"provisioned": nil, // and deleted
	} {
		t.Run(name, func(t *testing.T) {
			volumetest.Run(t, volumetest.Config{
				NewPlugin: func(testing.TB) volume.VolumePlugin {
					return New(Options{BaseDir: "/volumes", Mounter: world, Files: world})
				},
				NewSpec: newSpec,
				World:   world, RootDir: "/node",
				Require:        volume.CapPersistent | volume.CapProvision | volume.CapRecycle | volume.CapDelete,
				PlainDirectory: true,
				Shared:         true,
				Lifetime:       volumetest.LifetimeOfStorage,
			})
		})
	}
	left, err := world.ReadDir("/volumes")
	require.NoError(t, err)
	for _, entry := range left {
		assert.Regexp(t, "^(data|new)-", entry.Name(), "what was provisioned is gone")
	}
}
