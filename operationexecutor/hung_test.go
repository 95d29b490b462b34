package operationexecutor_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// alone is a generator whose every unmount of a device is one call that does what the test says.
type alone struct {
	operationexecutor.OperationGenerator
	do   func(ctx context.Context) error
	made *operationexecutor.Operation // set: this one, again and again
}

func (a *alone) GenerateUnmountDeviceFunc(v operationexecutor.AttachedVolume, _ operationexecutor.ActualStateOfWorldMounterUpdater) *operationexecutor.Operation {
	if a.made != nil {
		return a.made
	}
	return operationexecutor.NewOperation(operationexecutor.OperationInfo{
		Kind: operationexecutor.OpUnmountDevice, PluginName: v.PluginName, VolumeName: v.VolumeName,
	}, a.do)
}

func (a *alone) start(ctx context.Context, e *operationexecutor.Executor, name string) (*operationexecutor.Operation, error) {
	return e.UnmountDevice(ctx, operationexecutor.AttachedVolume{VolumeName: volumeName(name), PluginName: pluginName}, nil)
}

func hangsHere(released <-chan struct{}) error { <-released; return nil }

// TestAHungCallIsShownWithItsStack for a call of an operation of several steps, and for an operation that is one call.
func TestAHungCallIsShownWithItsStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		g := &alone{do: func(context.Context) error { return hangsHere(released) }}
		single := operationexecutor.NewOperationExecutor(g, operationexecutor.ExecutorOptions{})
		w := newWorld(t, setup{})
		w.attached("data")
		w.plugin.on("SetUp", func(context.Context) error { return hangsHere(released) })
		for executor, begin := range map[*operationexecutor.Executor]func() (*operationexecutor.Operation, error){
			w.executor: func() (*operationexecutor.Operation, error) { return w.mount("data", "p") },
			single:     func() (*operationexecutor.Operation, error) { return g.start(t.Context(), single, "data") },
		} {
			assert.Empty(t, executor.Hung())
			began := time.Now()
			op, err := begin()
			require.NoError(t, err)
			awaitDone(t, op)
			require.ErrorIs(t, op.Err(), context.DeadlineExceeded)
			synctest.Wait()
			hung := executor.Hung()
			require.Len(t, hung, 1)
			assert.Equal(t, op.Info(), hung[0].Operation)
			assert.True(t, slices.ContainsFunc(op.Steps(), func(s operationexecutor.Step) bool { return s.Name == hung[0].Call }))
			assert.Equal(t, began, hung[0].Since)
			assert.Contains(t, hung[0].Stack(), "operationexecutor_test.hangsHere(")
			assert.Contains(t, hung[0].String(), hung[0].Call+" of plugin")
		}
		hung := append(w.executor.Hung(), single.Hung()...)
		assert.NotEqual(t, hung[0].Stack(), hung[1].Stack(), "each has the stack of its own goroutine")
		close(released)
		synctest.Wait()
		assert.Empty(t, w.executor.Hung())
		assert.Empty(t, single.Hung())
		assert.Empty(t, hung[0].Stack(), "what has returned has none")
		require.NoError(t, w.executor.Wait(t.Context()))
		require.NoError(t, single.Wait(t.Context()))
	})
}

// TestACallThatThePluginLeftBehindIsShown without a stack, which only the plugin knows.
func TestACallThatThePluginLeftBehindIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		lost := &abandonedByPlugin{done: make(chan struct{})}
		w.plugin.fail("SetUp", lost)
		w.ended(w.mount("data", "p"))
		synctest.Wait()
		hung := w.executor.Hung()
		require.Len(t, hung, 1)
		assert.Equal(t, "SetUp", hung[0].Call)
		assert.Empty(t, hung[0].Stack())
		close(lost.done)
		synctest.Wait()
		assert.Empty(t, w.executor.Hung())
	})
}

// TestAPluginOfWhichTooManyCallsHangGetsNoMore: each such call keeps a goroutine and a thread.
func TestAPluginOfWhichTooManyCallsHangGetsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{HungPerPlugin: 2}})
		release := w.hang("SetUp")
		for _, name := range []string{"a", "b"} {
			w.attached(name)
			w.ended(w.mount(name, "p"))
		}
		w.attached("c")
		op := w.ended(w.mount("c", "p"))
		var hung *operationexecutor.PluginHungError
		require.ErrorAs(t, op.Err(), &hung)
		assert.Equal(t, operationexecutor.PluginHungError{Plugin: pluginName, Hung: 2}, *hung)
		require.ErrorIs(t, hung, volume.ErrTransient)
		assert.Equal(t, operationexecutor.Transient, op.Result().Class)
		assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("c", "p"))
		assert.Equal(t, 2, w.count("SetUp"))
		release()
		synctest.Wait()
		w.succeeded(w.mount("c", "p"))
	})
}

// TestASlowCallGivesItsWorkerToAnother: a dead server keeps no worker from the plugin's other volumes. No more calls give
// theirs than may hang.
func TestASlowCallGivesItsWorkerToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{WorkersPerPlugin: 1, HungPerPlugin: 2}})
		start := time.Now()
		var mu sync.Mutex
		var began []time.Duration
		w.plugin.on("SetUp", func(context.Context) error {
			mu.Lock()
			began = append(began, time.Since(start))
			mu.Unlock()
			time.Sleep(time.Minute)
			return nil
		})
		for _, name := range []string{"a", "b", "c", "d"} {
			w.attached(name)
			_, err := w.mount(name, "p")
			require.NoError(t, err)
		}
		require.NoError(t, w.executor.Wait(t.Context()))
		assert.Equal(t, []time.Duration{0, 10 * time.Second, 20 * time.Second, 80 * time.Second}, began)
	})
}

func TestTheDeadlineIsThatOfThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{attachable: true, stageable: true, executor: operationexecutor.ExecutorOptions{
			Timeouts: operationexecutor.Timeouts{Mount: time.Minute, Unmount: time.Minute, WaitForAttach: time.Minute},
			PluginTimeouts: map[string]operationexecutor.Timeouts{
				pluginName:          {Mount: time.Second, WaitForAttach: 2 * time.Second},
				"example.com/other": {Mount: time.Hour, Unmount: time.Hour},
			},
		}})
		w.attached("data")
		bound := map[string]time.Duration{}
		for _, method := range []string{"WaitForAttach", "MountDevice", "SetUp", "TearDown", "UnmountDevice"} {
			w.plugin.on(method, func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				bound[method] = time.Until(deadline)
				return nil
			})
		}
		w.succeeded(w.mount("data", "p"))
		w.succeeded(w.unmount("data", "p"))
		w.succeeded(w.unmountDevice("data"))
		assert.Equal(t, map[string]time.Duration{
			"WaitForAttach": 2 * time.Second, "MountDevice": time.Second, "SetUp": time.Second,
			"TearDown": time.Minute, "UnmountDevice": operationexecutor.DefaultTimeout,
		}, bound)
	})
}

// TestAShutdownDrains: nothing begins after it, and what is left is named.
func TestAShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		release := make(chan struct{})
		w.plugin.on("SetUp", func(context.Context) error { <-release; return nil })
		op, err := w.mount("data", "p")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var left *operationexecutor.WaitError
		require.ErrorAs(t, w.executor.Shutdown(ctx), &left)
		require.ErrorIs(t, left, context.DeadlineExceeded)
		assert.Equal(t, []operationexecutor.OperationInfo{op.Info()}, left.Running)
		_, err = w.mount("other", "p")
		require.ErrorIs(t, err, operationexecutor.ErrShutDown)
		assert.False(t, w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("other")}))

		drained := make(chan error)
		go func() { drained <- w.executor.Shutdown(t.Context()) }()
		synctest.Wait()
		close(release)
		require.NoError(t, <-drained)
		require.NoError(t, op.Err())
		<-op.Done()
	})
}

// TestTheContextOfACallIsAContext in every way in which plugins use one.
func TestTheContextOfACallIsAContext(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		g := &alone{}
		e := operationexecutor.NewOperationExecutor(g, operationexecutor.ExecutorOptions{
			Timeouts: operationexecutor.Timeouts{UnmountDevice: time.Minute},
		})
		run := func(ctx context.Context, do func(ctx context.Context) error) *operationexecutor.Operation {
			g.do = do
			op, err := g.start(ctx, e, "data")
			require.NoError(t, err)
			awaitDone(t, op)
			e.Forget(volumeName("data"))
			return op
		}
		var kept context.Context
		after := make(chan struct{})
		op := run(context.WithValue(t.Context(), key{}, "value"), func(ctx context.Context) error {
			kept = ctx
			assert.Equal(t, "value", ctx.Value(key{}))
			require.NoError(t, ctx.Err())
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			stop := context.AfterFunc(ctx, func() { assert.Fail(t, "it was stopped") })
			assert.True(t, stop())
			assert.False(t, stop())
			cancel()
			require.NoError(t, ctx.Err())
			require.ErrorIs(t, derived.Err(), context.Canceled)
			context.AfterFunc(ctx, func() { close(after) })
			return nil
		})
		require.NoError(t, op.Err())
		<-after
		<-kept.Done()
		require.ErrorIs(t, kept.Err(), context.Canceled, "it ends with the call")

		for name, wait := range map[string]func(ctx context.Context) error{
			"done": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"derived": func(ctx context.Context) error {
				d, stop := context.WithCancel(ctx)
				defer stop()
				<-d.Done()
				return context.Cause(d)
			},
		} {
			start := time.Now()
			op = run(t.Context(), wait)
			require.ErrorIs(t, op.Err(), context.DeadlineExceeded, name)
			assert.Equal(t, time.Minute, time.Since(start), name)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			assert.Equal(t, time.Minute, op.Result().Duration)

			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(errBroken) })
			op = run(ctx, func(ctx context.Context) error { _ = wait(ctx); return context.Cause(ctx) })
			require.ErrorIs(t, op.Err(), errBroken, name)

			ctx, cancel = context.WithCancelCause(t.Context())
			cancel(errBroken)
			op = run(ctx, func(context.Context) error { assert.Fail(t, "it must not be called"); return nil })
			assert.Equal(t, operationexecutor.Transient, op.Result().Class)
			require.ErrorIs(t, op.Err(), errBroken)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		run(soon, func(ctx context.Context) error {
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, time.Second, time.Until(deadline))
			return nil
		})
		require.NoError(t, e.Wait(t.Context()))
	})
}

// TestAnOperationOfOneCallEndsHoweverTheCallDoes.
func TestAnOperationOfOneCallEndsHoweverTheCallDoes(t *testing.T) {
	for name, bad := range badCalls() {
		t.Run(name, func(t *testing.T) {
			g := &alone{do: bad}
			e := operationexecutor.NewOperationExecutor(g, operationexecutor.ExecutorOptions{})
			op, err := g.start(t.Context(), e, "data")
			require.NoError(t, err)
			awaitDone(t, op)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			require.Len(t, op.Steps(), 1)
			require.Error(t, op.Steps()[0].Err)
			require.NoError(t, e.Wait(t.Context()))
			assert.False(t, e.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}))
		})
	}
}

// TestAnOperationIsBegunOnce: its handle tells of one end.
func TestAnOperationIsBegunOnce(t *testing.T) {
	op := operationexecutor.NewOperation(operationexecutor.OperationInfo{Kind: operationexecutor.OpUnmountDevice, VolumeName: "a/b/c"},
		func(context.Context) error { return nil })
	g := &alone{made: op}
	e := operationexecutor.NewOperationExecutor(g, operationexecutor.ExecutorOptions{})
	_, err := g.start(t.Context(), e, "data")
	require.NoError(t, err)
	awaitDone(t, op)
	_, err = g.start(t.Context(), e, "data")
	require.ErrorIs(t, err, volume.ErrInvalid)
}
