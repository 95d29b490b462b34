package operationexecutor_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// subpaths is the port; do says what it does, nil succeeds.
type subpaths struct {
	*history
	do func(ctx context.Context) error
}

func (s *subpaths) CleanSubpaths(ctx context.Context, podUID types.UID, _, name string) error {
	s.add("CleanSubpaths", string(podUID), name)
	if s.do == nil {
		return nil
	}
	return s.do(ctx)
}

// subpathWorld is a world in which the pod p has the volume "data".
func subpathWorld(t *testing.T) (*world, *subpaths) {
	port := &subpaths{}
	w := newWorld(t, setup{generator: func(o *operationexecutor.GeneratorOptions) { o.Subpaths = port }})
	port.history = w.history
	w.attached("data")
	w.succeeded(w.mount("data", "p"))
	w.clear()
	return w, port
}

func TestSubpathsGoBeforeTheVolume(t *testing.T) {
	w, _ := subpathWorld(t)
	w.succeeded(w.unmount("data", "p"))
	assert.Equal(t, []string{"CleanSubpaths p data", "intend set-up", "TearDown", "conclude set-up forgotten"}, w.all())
}

// TestAVolumeWhoseSubpathsStayIsNotTornDown: nothing was done to the volume itself, so that it is what it was.
func TestAVolumeWhoseSubpathsStayIsNotTornDown(t *testing.T) {
	w, port := subpathWorld(t)
	port.do = func(context.Context) error { return syscall.EBUSY }
	require.ErrorIs(t, w.failed(w.unmount("data", "p")), syscall.EBUSY)
	assert.Equal(t, []string{"CleanSubpaths p data"}, w.all())
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
	assert.Equal(t, []string{"Warning FailedUnmount p"}, w.recorder.all()[1:])

	port.do = nil
	w.succeeded(w.unmount("data", "p"))
	assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
}

// TestSubpathsThatHangKeepTheVolume: the next teardown does not begin beside a call that is lost.
func TestSubpathsThatHangKeepTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, port := subpathWorld(t)
		release := make(chan struct{})
		port.do = func(context.Context) error { <-release; return errors.New("too late") }
		op, err := w.unmount("data", "p")
		require.NoError(t, err)
		awaitDone(t, op)
		require.ErrorIs(t, op.Err(), volume.ErrUncertain)
		assert.Len(t, w.executor.Hung(), 1)
		var pending *volume.PendingError
		_, err = w.unmount("data", "p")
		require.ErrorAs(t, err, &pending)
		assert.Zero(t, w.count("TearDown"))
		close(release)
		synctest.Wait()
		require.NoError(t, w.executor.Wait(t.Context()))
	})
}
