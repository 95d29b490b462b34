package volume

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume/usage"
)

// TestMetricsOfAHungServer asks each provider about a server that does not answer. The caller leaves with its context,
// and gets an answer when the server is back.
func TestMetricsOfAHungServer(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, provider := range map[string]func(path string) MetricsProvider{
		"a mount":     func(path string) MetricsProvider { return &Dir{Path: path} },
		"statfs":      func(path string) MetricsProvider { return NewMetricsStatFS(path) },
		"a directory": func(path string) MetricsProvider { return NewMetricsDu(path) },
	} {
		t.Run(name, func(t *testing.T) {
			server := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"file": "content"}})
			p := provider(server.Path())
			lost := leave(t, server, p)
			require.ErrorIs(t, lost, context.Canceled)
			require.ErrorIs(t, lost, ErrUncertain)
			server.Heal()
			receive(t, outcome.DoneOf(lost))
			metrics, err := p.GetMetrics(t.Context())
			require.NoError(t, err)
			assert.NotNil(t, metrics.Capacity)
		})
	}
}

// leave begins a call that hangs and gives it up.
func leave(t *testing.T, server *mounttest.FUSE, p MetricsProvider) error {
	t.Helper()
	server.Hang(mounttest.FUSEStatfs)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := p.GetMetrics(ctx)
		result <- err
	}()
	server.Await(mounttest.FUSEStatfs)
	cancel()
	return receive(t, result)
}

// receive returns what comes from c, which is nothing when c is closed. It is not waited for until all tests are killed.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	patience := time.NewTimer(30 * time.Second)
	defer patience.Stop()
	var v T
	select {
	case v = <-c:
	case <-patience.C:
		require.Fail(t, "nothing comes")
	}
	return v
}

// TestProvidersThatShareAMeasurerLeaveOneCallBehind holds that a volume whose providers come and go does not get one lost
// call from each.
func TestProvidersThatShareAMeasurerLeaveOneCallBehind(t *testing.T) {
	mounttest.RequireMounts(t)
	server := mounttest.NewFUSE(t, mounttest.FUSEOptions{})
	options := MetricsOptions{Measurer: new(usage.Measurer), Expect: usage.Expect{MountPoint: true}}
	lost := leave(t, server, NewMetricsStatFSWith(server.Path(), options))
	require.ErrorIs(t, lost, ErrUncertain)
	for _, p := range []MetricsProvider{
		NewMetricsStatFSWith(server.Path(), options), NewMetricsDuWith(server.Path(), options),
	} {
		_, err := p.GetMetrics(t.Context())
		require.ErrorIs(t, err, usage.ErrStuck, "%T", p)
		require.ErrorIs(t, err, ErrTransient, "%T", p)
	}
	assert.Len(t, options.Measurer.Abandoned(), 1)
	server.Heal()
	receive(t, outcome.DoneOf(lost))
	assert.Empty(t, options.Measurer.Abandoned())
	_, err := NewMetricsDuWith(server.Path(), options).GetMetrics(t.Context())
	require.NoError(t, err)
}
