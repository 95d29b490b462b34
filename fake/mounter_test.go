package fake_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMounterSuite(t *testing.T) {
	mounttest.Run(t, mounttest.Config{
		New: func(testing.TB) (mount.Interface, mounttest.World) {
			m := fake.NewMounter(fake.MounterOptions{})
			return m, m
		},
		Root: func(t testing.TB, w mounttest.World) string {
			require.NoError(t, w.Mkdir("/root", 0o755))
			return "/root"
		},
	})
}
