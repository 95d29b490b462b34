package operationexecutor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
)

// TestCallsOfOneGoroutineShareContexts: each has its deadline all the same, but for a hundredth, and ends with its operation's context.
func TestCallsOfOneGoroutineShareContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last context.Context
		e := operationexecutor.NewOperationExecutor(mountGenerator{operation: func() *operationexecutor.Operation {
			return operationexecutor.NewOperation(operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, VolumeName: "a/b/c"}, func(ctx context.Context) error {
				last = ctx
				return nil
			})
		}}, operationexecutor.ExecutorOptions{Timeouts: operationexecutor.Timeouts{Mount: 100 * time.Second}}).Synchronous(nil)
		call := func(ctx context.Context) context.Context {
			t.Helper()
			op, err := e.MountVolume(ctx, operationexecutor.VolumeToMount{VolumeName: "a/b/c"}, operationexecutor.MountOptions{}, nil)
			require.NoError(t, err)
			require.NoError(t, op.Err())
			return last
		}
		left := func(ctx context.Context) time.Duration {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			return time.Until(deadline)
		}
		parent, cancel := context.WithCancel(t.Context())
		first := call(parent)
		assert.Equal(t, 100*time.Second, left(first))
		time.Sleep(time.Second / 2)
		assert.Same(t, first, call(parent))
		time.Sleep(time.Second)
		second := call(parent)
		assert.Equal(t, 100*time.Second, left(second))
		require.ErrorIs(t, first.Err(), context.Canceled)

		other, cancelOther := context.WithCancel(t.Context())
		defer cancelOther()
		third := call(other)
		require.ErrorIs(t, second.Err(), context.Canceled, "it is of another operation's context")
		cancel()
		require.NoError(t, third.Err())
		cancelOther()
		require.ErrorIs(t, third.Err(), context.Canceled)
	})
}
