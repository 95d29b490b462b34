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
	for name, options := range map[string]AttachOptions{
		"writable":  {Label: "in steps", SectorSize: 4096},
		"read-only": {Label: "in steps", ReadOnly: true, DirectIO: true},
		"a part":    {Label: "in steps", Offset: 8192, SizeLimit: 16384},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Options{})
			path := filepath.Join(t.TempDir(), "disk.img")
			require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
			a := attachment{mode: unix.O_RDWR, options: options}
			if options.ReadOnly {
				a.mode = unix.O_RDONLY
			}
			var err error
			a.file.handle, err = open(path, a.mode)
			require.NoError(t, err)
			defer a.file.close()
			device, attached, err := m.inspect(stepsToFreeDevice(t, m, a))
			require.NoError(t, err)
			require.True(t, attached)
			t.Cleanup(func() { assert.NoError(t, m.Detach(context.WithoutCancel(t.Context()), device)) })
			assert.Equal(t, path, device.BackingPath)
			assert.Equal(t, "in steps", device.Label)
			assert.Equal(t, options.ReadOnly, device.ReadOnly)
			require.NoError(t, fits(device, options))
		})
	}
}

// stepsToFreeDevice gives the file to a device that is free, and returns its number.
func stepsToFreeDevice(t *testing.T, m *Manager, a attachment) int {
	t.Helper()
	for range maxAttempt {
		number, err := freeNumber()
		require.NoError(t, err)
		node, err := m.openNode(number, a.mode)
		require.NoError(t, err)
		err = takenOr(node, configureInSteps(node, a))
		node.close()
		if err == nil {
			return number
		}
		require.ErrorIs(t, err, errTaken)
	}
	t.Fatal("every free device was taken by others")
	return 0
}
