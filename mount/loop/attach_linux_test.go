package loop

import (
	"context"
	"errors"
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
			device, attached, err := m.inspector.inspect(stepsToFreeDevice(t, m, a))
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
		node, err := m.nodes.open(number, a.mode)
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

// TestNoLookBetweenChangesOfOurOwn: the number of a detachment is found out by the change that follows it, be it of the
// same device or of another one. Somebody else may change a disk at any time, so that it is tried more than once.
func TestNoLookBetweenChangesOfOurOwn(t *testing.T) {
	mounttest.RequireRoot(t)
	m, dir := New(Options{}), t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		return path
	}
	attach := func(name string) Device {
		device, err := m.Attach(t.Context(), file(name), AttachOptions{})
		require.NoError(t, err)
		return device
	}
	opened, err := open(file("three"), unix.O_RDWR)
	require.NoError(t, err)
	defer opened.close()
	f, err := regular(t.Context(), opened)
	require.NoError(t, err)
	for range maxAttempt {
		one, two := attach("one"), attach("two")
		require.NoError(t, m.Detach(t.Context(), two))
		require.NoError(t, m.Detach(t.Context(), one))
		three, node, err := m.changes.attach(t.Context(), attachment{file: f, mode: unix.O_RDWR})
		if errors.Is(err, errTaken) {
			continue
		}
		require.NoError(t, err)
		complete := m.index.complete(three.DiskSeq)
		node.close()
		require.NoError(t, m.Detach(t.Context(), three))
		if complete {
			return
		}
	}
	t.Fatal("every attachment would look at all devices")
}
