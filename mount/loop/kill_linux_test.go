package loop_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestNothingLingersAfterAKill kills a process that attaches and detaches, at many different moments, and looks what the
// next one finds.
func TestNothingLingersAfterAKill(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	const kills = 14
	attached := 0
	for steps := range kills {
		killAfter(t, path, steps)
		left := devicesIn(t, filepath.Dir(path))
		attached += len(left)
		require.LessOrEqual(t, len(left), 1)
		next := loop.New(loop.Options{})
		device, err := next.Attach(t.Context(), path, loop.AttachOptions{})
		if errors.Is(err, loop.ErrInUse) {
			waitForLastClose(t, left)
			left = nil
			device, err = next.Attach(t.Context(), path, loop.AttachOptions{})
		}
		require.NoError(t, err, "no lock is left, and no half of a device")
		if len(left) == 1 {
			assert.Equal(t, left[0], device, "what is there is taken over")
		}
		require.NoError(t, next.Detach(t.Context(), device))
		require.Empty(t, devicesIn(t, filepath.Dir(path)))
	}
	t.Logf("killed %d times, attached %d times", kills, attached)
}

// waitForLastClose waits for the device that the process had detached when it was killed, and that another program has open since
// it looked at it. Nothing else may keep the file from being attached.
func waitForLastClose(t *testing.T, left []loop.Device) {
	t.Helper()
	require.Len(t, left, 1, "the file is in use, and no device has it")
	require.True(t, left[0].AutoClear, "%s was not detached, and is in use", left[0].Path)
	t.Logf("%s goes with its last close", left[0].Path)
	require.Eventually(t, func() bool {
		return len(devicesIn(t, filepath.Dir(left[0].BackingPath))) == 0
	}, time.Minute, 10*time.Millisecond)
}

// killAfter starts a process that attaches the file and detaches it without end, and kills it when it has said so often
// enough that it has taken a step.
func killAfter(t *testing.T, path string, steps int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childPair+"="+path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for range steps + 1 {
		require.True(t, lines.Scan(), "%v", lines.Err())
		require.Equal(t, "step", strings.TrimSpace(lines.Text()))
	}
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait(), "it was killed")
}
