package operationexecutor_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// unreadable is an error that cannot be read.
type unreadable struct{}

func (unreadable) Error() string { panic("no text") }

// unclassifiable is an error whose class cannot be asked.
type unclassifiable struct{}

func (unclassifiable) Error() string   { return "unclassifiable" }
func (unclassifiable) Uncertain() bool { panic("no class") }

// unmatchable, unreachable and unfit are errors of which one method of those that package errors calls panics.
type unmatchable struct{}

func (unmatchable) Error() string { return "unmatchable" }
func (unmatchable) Is(error) bool { panic("no match") }

type unreachable struct{}

func (unreachable) Error() string { return "unreachable" }
func (unreachable) Unwrap() error { panic("nothing within") }

type unfit struct{}

func (unfit) Error() string { return "unfit" }
func (unfit) As(any) bool   { panic("no such type") }

// typedNil is an error type whose nil pointer is returned by mistake.
type typedNil struct{}

func (*typedNil) Error() string { return "never" }

// badCalls are all the ways in which a call can end that is no plain error.
func badCalls() map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"panic":                 func(context.Context) error { panic("boom") },
		"panic with nil":        func(context.Context) error { panic(nil) },
		"panic with an error":   func(context.Context) error { panic(volume.Transient(errBroken)) },
		"Goexit":                func(context.Context) error { runtime.Goexit(); return nil },
		"nil pointer":           func(context.Context) error { var err *typedNil; return err },
		"error that panics":     func(context.Context) error { return unreadable{} },
		"Is that panics":        func(context.Context) error { return fmt.Errorf("%w", unmatchable{}) },
		"Unwrap that panics":    func(context.Context) error { return unreachable{} },
		"As that panics":        func(context.Context) error { return errors.Join(errBroken, unfit{}) },
		"error without a class": func(context.Context) error { return unclassifiable{} },
		"wrapped, that panics":  func(context.Context) error { return fmt.Errorf("%w, %w", errBroken, unclassifiable{}) },
	}
}

// TestABadCallIsAnUncertainErrorOfItsOperationAlone covers every method that changes the world.
func TestABadCallIsAnUncertainErrorOfItsOperationAlone(t *testing.T) {
	for name, bad := range badCalls() {
		for _, method := range []string{"Attach", "MountDevice", "SetUp", "TearDown", "UnmountDevice", "Detach"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				w := newWorld(t, setup{attachable: true, stageable: true})
				w.plugin.on(method, bad)
				failures := 0
				for _, start := range []func() (*operationexecutor.Operation, error){
					func() (*operationexecutor.Operation, error) { return w.attach("data") },
					func() (*operationexecutor.Operation, error) { return w.mount("data", "p") },
					func() (*operationexecutor.Operation, error) { return w.unmount("data", "p") },
					func() (*operationexecutor.Operation, error) { return w.unmountDevice("data") },
					func() (*operationexecutor.Operation, error) { return w.detach("data") },
				} {
					op := w.ended(start())
					if op.Err() != nil {
						failures++
						assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
						assert.NotEmpty(t, op.Err().Error())
						w.plugin.on(method, nil)
						w.succeeded(start())
					}
				}
				assert.Equal(t, 1, failures)
				assert.Empty(t, w.journal.records)
			})
		}
	}
}

func TestAPanicTellsItsMethodAndItsStackAside(t *testing.T) {
	w := newWorld(t, setup{})
	w.attached("data")
	w.plugin.on("SetUp", func(context.Context) error { panic("boom") })
	err := w.failed(w.mount("data", "p"))
	var p *volume.PanicError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, "SetUp", p.Call)
	assert.Equal(t, pluginName, p.Plugin)
	assert.Equal(t, "boom", p.Value)
	assert.Contains(t, string(p.Stack), "TestAPanicTellsItsMethodAndItsStackAside")
	assert.NotContains(t, err.Error(), "goroutine")

	w.plugin.on("SetUp", func(context.Context) error { runtime.Goexit(); return nil })
	require.ErrorIs(t, w.failed(w.mount("data", "p")), operationexecutor.ErrGoexit)
}

func TestABadCallThatChangesNothingIsNotUncertain(t *testing.T) {
	for name, bad := range badCalls() {
		for _, method := range []string{"NewMounter", "CanMount", "WaitForAttach"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				w := stagedWorld(t)
				w.plugin.on(method, bad)
				op := w.ended(w.mount("data", "p"))
				require.Error(t, op.Err())
				assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
				assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
				assert.Empty(t, w.journal.records)
			})
		}
	}
}

// hang makes a method ignore its context until the returned function is called.
func (w *world) hang(method string) (release func()) {
	released := make(chan struct{})
	w.plugin.on(method, func(context.Context) error { <-released; return nil })
	return func() { w.plugin.on(method, nil); close(released) }
}

// TestAHungCallIsLeftBehindAndKeepsItsKey is acceptance line 15 and rule S1 of the simulation: a call past its deadline
// holds its key until it really returns.
func TestAHungCallIsLeftBehindAndKeepsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := &history{}
		w := newWorld(t, setup{stageable: true, executor: operationexecutor.ExecutorOptions{
			Timeouts: operationexecutor.Timeouts{Mount: time.Minute}, Grace: 3 * time.Second, WorkersPerPlugin: 1,
			KeyFreed: func(o operationexecutor.OperationInfo) { freed.add(string(o.VolumeName)) },
		}})
		w.attached("data")
		w.attached("other")
		release := w.hang("MountDevice")
		start := time.Now()
		op := w.ended(w.mount("data", "p"))
		assert.Equal(t, time.Minute+3*time.Second, time.Since(start))
		assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
		require.ErrorIs(t, op.Err(), context.DeadlineExceeded)
		var lost *outcome.AbandonedError
		require.ErrorAs(t, op.Err(), &lost)
		assert.Equal(t, "MountDevice", lost.Call)
		assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))

		_, err := w.mount("data", "q")
		var pending *volume.PendingError
		require.ErrorAs(t, err, &pending)
		assert.Equal(t, volume.PendingError{Op: "volume_mount", Running: "volume_mount", Volume: volumeName("data"), Since: start}, *pending)
		assert.True(t, w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("data"), Pod: "q"}))
		synctest.Wait()
		assert.Empty(t, freed.all())

		w.plugin.on("MountDevice", nil)
		w.succeeded(w.mount("other", "p"))
		assert.Equal(t, 2, w.count("MountDevice"), "the one worker is not eaten by the abandoned call")
		synctest.Wait()
		assert.Equal(t, []string{string(volumeName("other"))}, freed.all())
		var left *operationexecutor.WaitError
		require.ErrorAs(t, w.executor.Wait(t.Context()), &left)
		assert.Equal(t, volumeName("data"), left.Abandoned[0].VolumeName)
		assert.Empty(t, left.Running)

		release()
		synctest.Wait()
		assert.Equal(t, []string{string(volumeName("other")), string(volumeName("data"))}, freed.all())
		require.NoError(t, w.executor.Wait(t.Context()))
		w.succeeded(w.mount("data", "q"))
		assert.Equal(t, 3, w.count("MountDevice"))
	})
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// TestReturnedWaitsForTheLastCallAndForWhoIsToldOfIt: what the keys guarded is left alone from then on.
func TestReturnedWaitsForTheLastCallAndForWhoIsToldOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan struct{})
		w := newWorld(t, setup{stageable: true, executor: operationexecutor.ExecutorOptions{
			KeyFreed: func(operationexecutor.OperationInfo) { <-told },
		}})
		assert.True(t, isClosed(w.executor.Returned()), "nothing was abandoned")
		w.attached("data")
		w.attached("other")
		release := w.hang("MountDevice")
		w.ended(w.mount("data", "p"))
		w.ended(w.mount("other", "p"))
		returned, again := w.executor.Returned(), w.executor.Returned()
		assert.False(t, isClosed(returned))
		release()
		synctest.Wait()
		require.NoError(t, w.executor.Shutdown(t.Context()))
		assert.False(t, isClosed(returned), "it is not closed before KeyFreed was called for all")
		told <- struct{}{}
		synctest.Wait()
		assert.False(t, isClosed(returned), "of one more")
		told <- struct{}{}
		synctest.Wait()
		assert.True(t, isClosed(returned))
		assert.True(t, isClosed(again))
		assert.True(t, isClosed(w.executor.Returned()))
	})
}

// abandonedByPlugin is the error of a system call that the mount layer abandoned.
type abandonedByPlugin struct{ done chan struct{} }

func (l *abandonedByPlugin) Error() string         { return "umount2 has not returned" }
func (l *abandonedByPlugin) Uncertain() bool       { return true }
func (l *abandonedByPlugin) Done() <-chan struct{} { return l.done }

func TestACallThatThePluginLeftBehindKeepsTheKeyToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int64
		w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{
			KeyFreed: func(operationexecutor.OperationInfo) { freed.Add(1) },
		}})
		w.attached("data")
		w.succeeded(w.mount("data", "p"))
		lost := &abandonedByPlugin{done: make(chan struct{})}
		w.plugin.fail("TearDown", fmt.Errorf("unmounting: %w", lost))
		op := w.ended(w.unmount("data", "p"))
		require.ErrorIs(t, op.Err(), lost)
		w.plugin.fail("TearDown", nil)
		synctest.Wait()
		assert.EqualValues(t, 1, freed.Load())
		_, err := w.unmount("data", "p")
		var pending *volume.PendingError
		require.ErrorAs(t, err, &pending)
		close(lost.done)
		synctest.Wait()
		assert.EqualValues(t, 2, freed.Load())
		w.succeeded(w.unmount("data", "p"))
	})
}

// TestEveryCallThatThePluginLeftBehindKeepsTheKey: the last of several to end counts, whichever that is; one that has
// ended already does not.
func TestEveryCallThatThePluginLeftBehindKeepsTheKey(t *testing.T) {
	for name, order := range map[string][]int{"first to last": {0, 2}, "last to first": {2, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var freed atomic.Int64
				w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{
					KeyFreed: func(operationexecutor.OperationInfo) { freed.Add(1) },
				}})
				w.attached("data")
				w.succeeded(w.mount("data", "p"))
				lost := []*abandonedByPlugin{{done: make(chan struct{})}, {done: make(chan struct{})}, {done: make(chan struct{})}}
				w.plugin.fail("TearDown", errors.Join(lost[0], fmt.Errorf("unmounting: %w", errors.Join(lost[1], lost[2]))))
				close(lost[1].done)
				w.ended(w.unmount("data", "p"))
				w.plugin.fail("TearDown", nil)
				for _, i := range order {
					synctest.Wait()
					assert.EqualValues(t, 1, freed.Load())
					_, err := w.unmount("data", "p")
					var pending *volume.PendingError
					require.ErrorAs(t, err, &pending)
					close(lost[i].done)
				}
				synctest.Wait()
				assert.EqualValues(t, 2, freed.Load())
				w.succeeded(w.unmount("data", "p"))

				w.succeeded(w.mount("data", "p"))
				w.plugin.fail("TearDown", errors.Join(lost[0], lost[1]))
				w.ended(w.unmount("data", "p"))
				assert.False(t, w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}),
					"calls that have all ended keep nothing")
			})
		})
	}
}

// TestAWaitForTheDeviceThatIsLeftBehindMayHaveLoggedIn: what it may have begun is on record, and is undone before the
// volume is forgotten.
func TestAWaitForTheDeviceThatIsLeftBehindMayHaveLoggedIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := stagedWorld(t)
		release := w.hang("WaitForAttach")
		op := w.ended(w.mount("data", "p"))
		assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
		assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
		assert.Equal(t, 1, w.count("conclude staging uncertain"))
		release()
		synctest.Wait()
		w.succeeded(w.unmountDevice("data"))
		assert.Empty(t, w.journal.records)
	})
}

// asksBack is an error whose class is asked of the operation.
type asksBack struct {
	op func() *operationexecutor.Operation
}

func (asksBack) Error() string { return "asks back" }
func (e asksBack) Uncertain() bool {
	if op := e.op(); op != nil {
		op.Info()
	}
	return false
}

func TestErrorsAreReadOutsideOfTheLock(t *testing.T) {
	w := newWorld(t, setup{})
	w.attached("data")
	var op atomic.Pointer[operationexecutor.Operation]
	began := make(chan struct{})
	w.plugin.on("SetUp", func(context.Context) error { <-began; return asksBack{op.Load} })
	mounting, err := w.mount("data", "p")
	require.NoError(t, err)
	op.Store(mounting)
	close(began)
	awaitDone(t, mounting)
	assert.Equal(t, operationexecutor.Final, mounting.Result().Class)
}

// TestAHookThatEndsItsGoroutineEndsNoMore: callers that wait for the executor still return.
func TestAHookThatEndsItsGoroutineEndsNoMore(t *testing.T) {
	w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{
		KeyFreed: func(operationexecutor.OperationInfo) { runtime.Goexit() },
	}})
	w.attached("data")
	w.succeeded(w.mount("data", "p"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, w.executor.Wait(ctx))
}

// TestACallThatReturnsInTheGraceIsNotLeftBehind holds for its success as well.
func TestACallThatReturnsInTheGraceIsNotLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		w.plugin.on("SetUp", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		})
		w.succeeded(w.mount("data", "p"))
		assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
	})
}

func TestTheDeadlineIsThatOfTheKind(t *testing.T) {
	timeouts := operationexecutor.Timeouts{
		Attach: time.Second, Detach: 2 * time.Second, Mount: 3 * time.Second, Unmount: 4 * time.Second, UnmountDevice: 5 * time.Second,
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{attachable: true, stageable: true, executor: operationexecutor.ExecutorOptions{Timeouts: timeouts}})
		bound := map[string]time.Duration{}
		for _, method := range []string{"Attach", "WaitForAttach", "MountDevice", "SetUp", "TearDown", "UnmountDevice", "Detach"} {
			w.plugin.on(method, func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				bound[method] = time.Until(deadline)
				return nil
			})
		}
		w.succeeded(w.attach("data"))
		w.succeeded(w.mount("data", "p"))
		w.succeeded(w.unmount("data", "p"))
		w.succeeded(w.unmountDevice("data"))
		w.succeeded(w.detach("data"))
		assert.Equal(t, map[string]time.Duration{
			"Attach": time.Second, "WaitForAttach": operationexecutor.DefaultWaitForAttachTimeout, "MountDevice": 3 * time.Second,
			"SetUp": 3 * time.Second, "TearDown": 4 * time.Second, "UnmountDevice": 5 * time.Second, "Detach": 2 * time.Second,
		}, bound)
	})
}

// TestWaitForAttachThatTimesOutLeavesNothingBehind: it is a wait, and says nothing of the staging.
func TestWaitForAttachThatTimesOutLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := stagedWorld(t)
		w.plugin.on("WaitForAttach", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		start := time.Now()
		op := w.ended(w.executor.MountVolume(t.Context(), w.toMount("data", "p"),
			operationexecutor.MountOptions{WaitForAttachTimeout: time.Minute}, w.actual))
		require.ErrorIs(t, op.Err(), context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
		assert.Empty(t, w.journal.records)
	})
}

// TestAWaitForADeviceIsNotForgotten: it may have logged in to a server. If MountDevice was not called after it, only
// UnmountDevice logs out.
func TestAWaitForADeviceIsNotForgotten(t *testing.T) {
	w := stagedWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.plugin.on("WaitForAttach", func(context.Context) error { cancel(); return nil })
	op := w.ended(w.executor.MountVolume(ctx, w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual))
	require.ErrorIs(t, op.Err(), context.Canceled)
	assert.NotContains(t, w.all(), "MountDevice")
	assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
	assert.Len(t, w.journal.records, 1)
	w.succeeded(w.executor.UnmountDevice(t.Context(), w.attachedVolume("data"), w.actual))
	assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
	assert.Empty(t, w.journal.records)
}

// TestWhatCanNeverBeIsNotTriedAtOnce: it waits longer than what may work the next time.
func TestWhatCanNeverBeIsNotTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		w.plugin.fail("SetUp", volume.ErrInfeasible)
		op, err := w.mount("data", "p")
		require.NoError(t, err)
		awaitDone(t, op)
		synctest.Wait()
		var backoff *volume.BackoffError
		_, err = w.mount("data", "p")
		require.ErrorAs(t, err, &backoff)
		assert.Equal(t, operationexecutor.DefaultInfeasible, time.Until(backoff.Until))
		w.executor.Forget(volumeName("data"))
		w.plugin.fail("SetUp", nil)
		w.succeeded(w.mount("data", "p"))
	})
}

// TestTheContextBoundsTheOperation: what is under way becomes uncertain and is concluded all the same, what was not begun
// is not.
func TestTheContextBoundsTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{WorkersPerPlugin: 1}})
		w.attached("data")
		w.attached("other")
		w.plugin.on("SetUp", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithCancel(t.Context())
		running, err := w.executor.MountVolume(ctx, w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual)
		require.NoError(t, err)
		synctest.Wait()
		waiting, err := w.executor.MountVolume(ctx, w.toMount("other", "p"), operationexecutor.MountOptions{}, w.actual)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, 1, w.count("SetUp"), "there is one worker")
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		var left *operationexecutor.WaitError
		require.ErrorAs(t, w.executor.Wait(short), &left)
		assert.Len(t, left.Running, 2)
		require.ErrorIs(t, left, context.DeadlineExceeded)

		cancel()
		require.NoError(t, w.executor.Wait(t.Context()))
		assert.Equal(t, operationexecutor.Uncertain, running.Result().Class)
		assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
		assert.Equal(t, 1, w.count("conclude set-up uncertain"))
		assert.Equal(t, operationexecutor.Transient, waiting.Result().Class)
		assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("other", "p"))
		require.ErrorIs(t, waiting.Err(), context.Canceled)
	})
}

// TestWhatWasNotCalledMarksNothing also for teardown, whose every other failure is uncertain.
func TestWhatWasNotCalledMarksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{attachable: true, stageable: true})
		w.succeeded(w.attach("data"))
		w.succeeded(w.mount("data", "p"))
		ctx, cancel := context.WithCancel(t.Context())
		w.clear()
		w.journal.onIntend = cancel // The context ends between the intent and the call.
		op := w.ended(w.executor.UnmountVolume(ctx, w.mounted("data", "p"), w.actual))
		assert.Equal(t, operationexecutor.Transient, op.Result().Class)
		assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
		assert.Zero(t, w.count("TearDown"))
		assert.Equal(t, 1, w.count("conclude set-up done"), "and the record stays")

		w.journal.onIntend = nil
		w.succeeded(w.unmount("data", "p"))
		ctx, cancel = context.WithCancel(t.Context())
		w.journal.onIntend = cancel
		op = w.ended(w.executor.UnmountDevice(ctx, w.attachedVolume("data"), w.actual))
		assert.Equal(t, operationexecutor.Transient, op.Result().Class)
		assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
		assert.Zero(t, w.count("UnmountDevice"))

		w.journal.onIntend = nil
		w.succeeded(w.unmountDevice("data"))
		w.clear()
		ctx, cancel = context.WithCancel(t.Context())
		w.journal.onIntend = cancel
		op = w.ended(w.executor.AttachVolume(ctx, operationexecutor.VolumeToAttach{
			VolumeName: volumeName("new"), VolumeSpec: spec("new"), NodeName: node,
		}, w.actual))
		assert.Equal(t, operationexecutor.Transient, op.Result().Class)
		assert.False(t, w.actual.VolumeExists(volumeName("new")))
		assert.NotContains(t, w.journal.records, string(volumeName("new"))+"attachment", "otherwise the record stays for ever")
		ctx, cancel = context.WithCancel(t.Context())
		w.journal.onIntend = cancel
		op = w.ended(w.executor.DetachVolume(ctx, w.attachedVolume("data"), operationexecutor.DetachOptions{}, w.actual))
		assert.Equal(t, operationexecutor.Transient, op.Result().Class)
		v, _ := w.actual.GetAttachedVolume(volumeName("data"))
		assert.Equal(t, cache.Attached, v.AttachState)
		assert.Zero(t, w.count("Attach")+w.count("Detach"))
	})
}

func TestInjectedOperationsAreIsolatedToo(t *testing.T) {
	g := mountGenerator{operation: func() *operationexecutor.Operation {
		return operationexecutor.NewOperation(
			operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, VolumeName: "a/b/c"},
			func(context.Context) error { panic(errors.New("boom")) })
	}}
	e := operationexecutor.NewOperationExecutor(g, operationexecutor.ExecutorOptions{})
	op, err := e.MountVolume(t.Context(), operationexecutor.VolumeToMount{VolumeName: "a/b/c"}, operationexecutor.MountOptions{}, nil)
	require.NoError(t, err)
	awaitDone(t, op)
	require.ErrorIs(t, op.Err(), volume.ErrUncertain)
	assert.Len(t, op.Steps(), 1)
}

// mountGenerator makes the same operation for every mount, and no other.
type mountGenerator struct {
	operationexecutor.OperationGenerator
	operation func() *operationexecutor.Operation
}

func (g mountGenerator) GenerateMountVolumeFunc(operationexecutor.VolumeToMount, operationexecutor.MountOptions, operationexecutor.ActualStateOfWorldMounterUpdater) *operationexecutor.Operation {
	return g.operation()
}
