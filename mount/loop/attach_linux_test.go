package loop

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestConfigureInSteps walks the way of kernels that do not know LOOP_CONFIGURE.
func TestConfigureInSteps(t *testing.T) {
	mounttest.RequireRoot(t)
	for name, options := range map[string]Options{
		"writable":  {Label: "in steps", SectorSize: 4096},
		"read-only": {Label: "in steps", ReadOnly: true, DirectIO: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.img")
			require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
			a := attachment{mode: unix.O_RDWR, options: options}
			if options.ReadOnly {
				a.mode = unix.O_RDONLY
			}
			var err error
			a.backing, err = os.OpenFile(path, a.mode, 0)
			require.NoError(t, err)
			defer a.backing.Close()
			number := stepsToFreeDevice(t, a)
			device, attached, err := inspect(number)
			require.NoError(t, err)
			require.True(t, attached)
			t.Cleanup(func() { assert.NoError(t, Detach(context.WithoutCancel(t.Context()), device)) })
			assert.Equal(t, path, device.BackingPath)
			assert.Equal(t, "in steps", device.Label)
			assert.Equal(t, options.ReadOnly, device.ReadOnly)
		})
	}
}

// stepsToFreeDevice gives the file to a device that is free, and returns its number.
func stepsToFreeDevice(t *testing.T, a attachment) int {
	t.Helper()
	for range maxAttempt {
		number, err := freeNumber()
		require.NoError(t, err)
		node, err := openNode(number, a.mode)
		require.NoError(t, err)
		err = takenOr(node, configureInSteps(node, a))
		require.NoError(t, node.Close())
		if err == nil {
			return number
		}
		require.ErrorIs(t, err, errTaken)
	}
	t.Fatal("every free device was taken by others")
	return 0
}
