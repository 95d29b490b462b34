package operationexecutor_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// TestCallsThatEndTheirGoroutineHoldUpNobody when many operations begin at once.
func TestCallsThatEndTheirGoroutineHoldUpNobody(t *testing.T) {
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
