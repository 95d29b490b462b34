package loop_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// sysOf reads what sysfs says of a device.
func sysOf(t *testing.T, device loop.Device, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/%s", device.Number, name))
	require.NoError(t, err)
	return strings.TrimSpace(string(text))
}

func ptr[T any](v T) *T { return &v }

func TestTune(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	_, err = loops.TuneFile(t.Context(), file, loop.Tuning{ReadAhead: ptr(int64(0))})
	require.ErrorIs(t, err, loop.ErrNotAttached)
	device := attach(t, path, loop.AttachOptions{})
	for range 2 {
		tuned, err := loops.TuneFile(t.Context(), file, loop.Tuning{ReadAhead: ptr(int64(1 << 20)), DirectIO: ptr(true)})
		require.NoError(t, err)
		assert.True(t, tuned.DirectIO)
		assert.Equal(t, device.Path, tuned.Path)
		assert.Equal(t, "1024", sysOf(t, device, "queue/read_ahead_kb"))
		assert.Equal(t, "1", sysOf(t, device, "loop/dio"))
	}
	tuned, err := loops.TuneFile(t.Context(), file, loop.Tuning{})
	require.NoError(t, err)
	assert.True(t, tuned.DirectIO, "nil leaves it")
	tuned, err = loops.TuneFile(t.Context(), file, loop.Tuning{ReadAhead: ptr(int64(loop.DefaultReadAhead)), DirectIO: ptr(false)})
	require.NoError(t, err)
	assert.False(t, tuned.DirectIO)
	assert.Equal(t, "128", sysOf(t, device, "queue/read_ahead_kb"))
	require.NoError(t, loops.Detach(t.Context(), device))
}
