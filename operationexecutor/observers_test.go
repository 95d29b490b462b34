package operationexecutor_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
)

type tagKey struct{}

// tagger is an observer that adds its name to what the context carries, and notes what it is told.
type tagger struct {
	name string
	told *[]string
}

func (o tagger) OperationContext(ctx context.Context, info operationexecutor.OperationInfo) context.Context {
	*o.told = append(*o.told, o.name+" context of "+string(info.VolumeName))
	tags, _ := ctx.Value(tagKey{}).(string)
	return context.WithValue(ctx, tagKey{}, tags+o.name)
}

func (o tagger) OperationStarted(operationexecutor.OperationInfo) {
	*o.told = append(*o.told, o.name+" started")
}

func (o tagger) OperationStepped(_ operationexecutor.OperationInfo, s operationexecutor.Step) {
	if s.Name == "SetUp" {
		*o.told = append(*o.told, o.name+" stepped")
	}
}

func (o tagger) OperationFinished(operationexecutor.OperationInfo, operationexecutor.Result) {
	*o.told = append(*o.told, o.name+" finished")
}

// plainObserver has no method for the context.
type plainObserver struct{ operationexecutor.Observer }

// TestThePluginGetsTheContextOfTheObservers, each of which is told of everything, in their order.
func TestThePluginGetsTheContextOfTheObservers(t *testing.T) {
	var told []string
	a, b := tagger{"a", &told}, tagger{"b", &told}
	w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{Observer: operationexecutor.Observers{a, plainObserver{a}, b}}})
	w.attached("data")
	told = nil
	var tags any
	w.plugin.on("SetUp", func(ctx context.Context) error {
		tags = ctx.Value(tagKey{})
		return nil
	})
	op, err := w.executor.Synchronous(nil).MountVolume(t.Context(), w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual)
	require.NoError(t, err)
	require.NoError(t, op.Err())
	assert.Equal(t, "ab", tags)
	volume := string(volumeName("data"))
	assert.Equal(t, []string{
		"a context of " + volume, "b context of " + volume,
		"a started", "a started", "b started",
		"a stepped", "a stepped", "b stepped",
		"a finished", "a finished", "b finished",
	}, told)
}

// panickingObserver panics when it is asked for a context.
type panickingObserver struct{ tagger }

func (panickingObserver) OperationContext(context.Context, operationexecutor.OperationInfo) context.Context {
	panic("no context")
}

// TestAnObserverThatPanicsFreesTheKey, also when it is asked for the context, before anything was done.
func TestAnObserverThatPanicsFreesTheKey(t *testing.T) {
	var told []string
	w := newWorld(t, setup{})
	w.attached("data")
	e := operationexecutor.NewOperationExecutor(
		w.generator, operationexecutor.ExecutorOptions{Observer: panickingObserver{tagger{"a", &told}}})
	assert.PanicsWithValue(t, "no context", func() {
		_, _ = e.Synchronous(nil).MountVolume(t.Context(), w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual)
	})
	assert.False(t, e.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}))
	assert.NotContains(t, w.all(), "SetUp", "the plugin was not called")
}
