package operationexecutor_test

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What an executor was given is not kept alive by the timers of calls that have long ended.
func TestAnIdleExecutorIsNotReferenced(t *testing.T) {
	rested := restedPlugin(t)
	assert.Eventually(t, func() bool {
		runtime.GC()
		return rested.Value() == nil
	}, time.Minute, time.Millisecond)
}

// restedPlugin returns the plugin of an executor that has run an operation and was waited for.
func restedPlugin(t *testing.T) weak.Pointer[plugin] {
	t.Helper()
	w := newWorld(t, setup{})
	w.attached("data")
	op, err := w.mount("data", "p")
	require.NoError(t, w.ended(op, err).Err())
	require.NoError(t, w.executor.Wait(t.Context()))
	return weak.Make(w.plugin)
}
