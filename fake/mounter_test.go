package fake_test

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
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

func TestChmodChangesTheModeAlone(t *testing.T) {
	w := fake.NewMounter(fake.MounterOptions{})
	require.NoError(t, w.Mkdir("/dir", 0o755))
	require.NoError(t, w.Chmod("/dir", fs.ModeSticky|0o700))
	info, err := w.Stat("/dir")
	require.NoError(t, err)
	assert.Equal(t, fs.ModeDir|fs.ModeSticky|0o700, info.Mode())
	require.ErrorIs(t, w.Chmod("/missing", 0o700), fs.ErrNotExist)
}
