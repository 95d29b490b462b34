package operationexecutor_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/operationexecutor"
)

// begunAtOnce begins a mount of each of n volumes.
func begunAtOnce(t *testing.T, w *world, n int) []*operationexecutor.Operation {
	t.Helper()
	ops := make([]*operationexecutor.Operation, 0, n)
	for i := range n {
		name := fmt.Sprintf("data-%d", i)
		w.attached(name)
		op, err := w.mount(name, "p")
		require.NoError(t, err)
		ops = append(ops, op)
	}
	return ops
}

// TestNoOperationWaitsForAnother, though one goroutine may do several of them.
func TestNoOperationWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 50
		w := newWorld(t, setup{})
		var inCall atomic.Int32
		release := make(chan struct{})
		w.plugin.on("SetUp", func(context.Context) error {
			inCall.Add(1)
			<-release
			return nil
		})
		ops := begunAtOnce(t, w, many)
		synctest.Wait()
		assert.EqualValues(t, many, inCall.Load())
		close(release)
		for _, op := range ops {
			awaitDone(t, op)
			require.NoError(t, op.Err())
		}
	})
}

// TestCallsThatEndTheirGoroutineDelayNoOther begins many operations at once.
func TestCallsThatEndTheirGoroutineDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 50
		w := newWorld(t, setup{})
		var calls atomic.Int32
		w.plugin.on("SetUp", func(context.Context) error {
			if calls.Add(1)%2 == 0 {
				runtime.Goexit()
			}
			return nil
		})
		ended := 0
		for _, op := range begunAtOnce(t, w, many) {
			awaitDone(t, op)
			if op.Err() != nil {
				require.ErrorIs(t, op.Err(), operationexecutor.ErrGoexit)
				ended++
			}
		}
		assert.Equal(t, many/2, ended)
	})
}

// TestAnOperationRunsInTheGoroutineOfItsCaller, when that is asked for, from start to end.
func TestAnOperationRunsInTheGoroutineOfItsCaller(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	w.attached("data")
	var stack string
	w.plugin.on("SetUp", func(context.Context) error {
		stack = string(debug.Stack())
		return nil
	})
	op, err := w.executor.Synchronous(nil).MountVolume(t.Context(), w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual)
	require.NoError(t, err)
	select {
	case <-op.Done():
	default:
		assert.Fail(t, "it has ended")
	}
	require.NoError(t, op.Err())
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
	position := 0
	for _, caller := range []string{"(*mounter).SetUp(", "(*mounting).setUp(", "(*execution).execute(", "TestAnOperationRunsInTheGoroutineOfItsCaller("} {
		at := strings.Index(stack[position:], caller)
		require.GreaterOrEqual(t, at, 0, "%s in\n%s", caller, stack)
		position += at
	}
	_, err = w.executor.Synchronous(nil).MountVolume(t.Context(), w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual)
	require.NoError(t, err, "the key is free")
}

// TestASynchronousOperationEndsBeforeItsAbandonedCall: others learn that it has, and that the key stays taken.
func TestASynchronousOperationEndsBeforeItsAbandonedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan operationexecutor.OperationInfo, 1)
		w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{
			CallsAbandoned: func(o operationexecutor.OperationInfo) { told <- o },
		}})
		w.attached("data")
		release := w.hang("SetUp")
		returned := make(chan *operationexecutor.Operation)
		go func() {
			op, _ := w.executor.Synchronous(nil).MountVolume(t.Context(), w.toMount("data", "p"), operationexecutor.MountOptions{}, w.actual)
			returned <- op
		}()
		assert.Equal(t, volumeName("data"), (<-told).VolumeName)
		assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
		assert.True(t, w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}), "both share the keys")
		var left *operationexecutor.WaitError
		require.ErrorAs(t, w.executor.Wait(t.Context()), &left)
		assert.Empty(t, left.Running, "nothing runs but the call")
		select {
		case <-returned:
			assert.Fail(t, "its goroutine is in the call")
		default:
		}
		release()
		assert.Equal(t, operationexecutor.Uncertain, (<-returned).Result().Class)
		synctest.Wait()
		require.NoError(t, w.executor.Wait(t.Context()))
	})
}

// TestASystemCallOfAPluginRunsInItsGoroutine: the executor leaves both behind together.
func TestASystemCallOfAPluginRunsInItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		calls, released := abandonable.New(abandonable.Options{}), make(chan struct{})
		w.plugin.on("SetUp", func(ctx context.Context) error {
			return calls.Do(ctx, abandonable.Key{Path: "/mnt"}, func(context.Context) error { return hangsHere(released) })
		})
		op := w.ended(w.mount("data", "p"))
		assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
		assert.Equal(t, operationexecutor.DefaultTimeout+operationexecutor.DefaultGrace, op.Result().Duration)
		synctest.Wait()
		require.Len(t, w.executor.Hung(), 1)
		for _, caller := range []string{"hangsHere(", "(*mounter).SetUp(", "(*mounting).setUp("} {
			assert.Contains(t, w.executor.Hung()[0].Stack(), caller)
		}
		assert.Len(t, calls.Abandoned(), 1, "others learn it too")
		close(released)
		synctest.Wait()
		require.NoError(t, w.executor.Wait(t.Context()))
	})
}
