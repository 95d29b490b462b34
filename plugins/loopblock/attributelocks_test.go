package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// One call holds the lock of a volume at a time. No lock stays in memory when all calls have ended.
func TestTurns(t *testing.T) {
	var all attributeLocks
	var calls sync.WaitGroup
	count := 0
	for range 100 {
		calls.Go(func() {
			done, err := all.lock(t.Context(), "pv")
			if assert.NoError(t, err) {
				count++ // which the race detector watches
				done()
			}
		})
	}
	calls.Wait()
	assert.Equal(t, 100, count)
	assert.Empty(t, all.byHandle)
}

// A call that reads, writes or applies the attributes of a volume waits for the lock, at most until its context ends.
func TestCallsOfOneVolumeWaitForTheirTurn(t *testing.T) {
	p := New(Options{BaseDir: t.TempDir()})
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node"})
	require.NoError(t, err)
	require.NoError(t, p.Init(t.Context(), host))
	done, err := p.devices.attributeLocks.lock(t.Context(), "pv")
	require.NoError(t, err)
	cause := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	spec := specOf(newVolume("pv"))
	deleter, err := p.NewDeleter(spec)
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"modify": func() error { return p.ModifyVolume(ctx, spec, map[string]string{ParameterReadAhead: "1Mi"}) },
		"attach": func() error { _, err := (&node{p}).Attach(ctx, spec, "node"); return err },
		"detach": func() error { return p.devices.detach(ctx, "pv", loop.Device{}) },
		"delete": func() error { return deleter.Delete(ctx) },
		"make": func() error {
			return (&provisioner{plugin: p, request: request{handle: "pv"}}).setAttributes(ctx)
		},
	} {
		err := call()
		require.ErrorIs(t, err, cause, name)
		require.ErrorIs(t, err, volume.ErrTransient, name)
		require.ErrorContains(t, err, "another call", name)
	}
	done()
	assert.Empty(t, p.devices.attributeLocks.byHandle)
}

// Only a filesystem that says so cannot do direct I/O: whatever else keeps the file from being opened may pass.
func TestWhatCannotDoDirectIO(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EINVAL: true, syscall.EOPNOTSUPP: true, volume.ErrUnsupported: true,
		syscall.EMFILE: false, syscall.EIO: false, fs.ErrNotExist: false,
	} {
		got := errNoDirectIO("pv.img", fmt.Errorf("open: %w", err))
		require.ErrorIs(t, got, err)
		assert.Equal(t, want, errors.Is(got, volume.ErrInfeasible), "%v", err)
	}
	assert.NoError(t, errNoDirectIO("pv.img", nil))
}
