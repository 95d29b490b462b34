package volumemanager

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

// abruptPlugin ends the goroutine that first asks it whether it serves a volume.
type abruptPlugin struct {
	instantPlugin
	asked atomic.Bool
}

func (p *abruptPlugin) CanSupport(*volume.Spec) bool {
	if p.asked.CompareAndSwap(false, true) {
		runtime.Goexit()
	}
	return true
}

// TestAPodGetsItsVolumesAfterAPluginHasEndedTheGoroutine: it was the one that resolves the claims of all pods when they are bound.
func TestAPodGetsItsVolumesAfterAPluginHasEndedTheGoroutine(t *testing.T) {
	w := newWorld(t, Options{})
	m := benchManagerOf(t, &abruptPlugin{}, Options{Store: w.store, Resync: -1})
	pod := podOf("a", "data")
	require.NoError(t, m.AddPod(t.Context(), pod))
	w.claim("data")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, m.WaitForAttachAndMount(ctx, pod))
}
