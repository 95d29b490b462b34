package fake

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

var errPlanned = errors.New("planned")

func TestFaultsHitCallsInOrder(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	plugin.Inject(MethodGetVolumeLimits, FailN(2, errPlanned), Fail(volume.Uncertain(errPlanned)))
	plugin.Inject(MethodGetVolumeLimits, FailAfter(volume.Transient(errPlanned)))
	var got []error
	for range 5 {
		_, err := plugin.GetVolumeLimits(t.Context())
		got = append(got, err)
	}
	require.ErrorIs(t, got[0], errPlanned)
	require.ErrorIs(t, got[1], errPlanned)
	require.ErrorIs(t, got[2], volume.ErrUncertain)
	require.ErrorIs(t, got[3], volume.ErrTransient)
	require.NoError(t, got[4])
}

func TestNegativeTimesHitsEveryCall(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	plugin.Inject(MethodGetVolumeLimits, FailN(-1, errPlanned), SkipWork())
	for range 3 {
		_, err := plugin.GetVolumeLimits(t.Context())
		require.ErrorIs(t, err, errPlanned)
	}
}

func TestWorkIsDoneOrNotAsTheFaultSays(t *testing.T) {
	for name, row := range map[string]struct {
		fault    Fault
		attached bool
		err      error
	}{
		"fail":       {Fail(errPlanned), false, errPlanned},
		"fail after": {FailAfter(errPlanned), true, errPlanned},
		"pretend":    {SkipWork(), false, nil},
		"done":       {Fault{Effect: EffectDone}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
			plugin.Inject(MethodAttach, row.fault)
			_, err := attacherOf(t, plugin).Attach(t.Context(), persistent("data"), "node-1")
			require.ErrorIs(t, err, row.err)
			assert.Equal(t, row.attached, len(plugin.Backend().Nodes("data")) == 1)
		})
	}
}

func TestPanicIsThePluginsAndTheCallHasEnded(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	plugin.Inject(MethodAttach, PanicWith("planned"))
	attacher := attacherOf(t, plugin)
	assert.PanicsWithValue(t, "planned", func() {
		_, _ = attacher.Attach(t.Context(), persistent("data"), "node-1")
	})
	last := plugin.Calls()[len(plugin.Calls())-1]
	assert.True(t, last.Ended)
	plugin.Inject(MethodNewMounter, PanicWith("planned"))
	assert.Panics(t, func() { _, _ = plugin.NewMounter(persistent("data"), pod("pod-1")) })
}

func TestHungCallEndsWhenItIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
		release := make(chan struct{})
		plugin.Inject(MethodAttach, HangUntil(release))
		result := attachInBackground(t.Context(), t, plugin)
		require.NoError(t, plugin.AwaitCalls(t.Context(), MethodAttach, 1))
		synctest.Wait()
		last := plugin.Calls()[len(plugin.Calls())-1]
		assert.Equal(t, `Attach "data" on node-1 (running)`, last.String())
		assert.Empty(t, plugin.Backend().Nodes("data"))
		close(release)
		require.NoError(t, <-result)
		assert.Len(t, plugin.Backend().Nodes("data"), 1)
	})
}

func TestHungCallIsUncertainWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
		plugin.Inject(MethodAttach, HangUntil(make(chan struct{})))
		ctx, cancel := context.WithCancelCause(t.Context())
		result := attachInBackground(ctx, t, plugin)
		synctest.Wait()
		cancel(errPlanned)
		err := <-result
		require.ErrorIs(t, err, volume.ErrUncertain)
		require.ErrorIs(t, err, errPlanned)
	})
}

func TestDeafCallDoesNotNoticeThatItsContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
		release := make(chan struct{})
		plugin.Inject(MethodAttach, HangUninterruptible(release))
		ctx, cancel := context.WithCancel(t.Context())
		result := attachInBackground(ctx, t, plugin)
		cancel()
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("the call returned: %v", err)
		default:
		}
		close(release)
		require.NoError(t, <-result)
	})
}

func attachInBackground(ctx context.Context, t *testing.T, plugin *Plugin) <-chan error {
	t.Helper()
	attacher := attacherOf(t, plugin)
	result := make(chan error, 1)
	go func() {
		_, err := attacher.Attach(ctx, persistent("data"), "node-1")
		result <- err
	}()
	return result
}

func TestAwaitCallsEndsWithItsContext(t *testing.T) {
	plugin := NewPlugin(PluginOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errPlanned)
	err := plugin.AwaitCalls(ctx, MethodAttach, 1)
	require.ErrorIs(t, err, errPlanned)
	assert.ErrorContains(t, err, "call 1 of Attach, 0 began")
}
