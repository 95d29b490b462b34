package operationexecutor_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestARefreshedVolumeIsNotToldAsMountedAgain, unless its pod had lost it.
func TestARefreshedVolumeIsNotToldAsMountedAgain(t *testing.T) {
	w := stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	w.succeeded(w.remount("data", "p"))
	assert.Equal(t, []string{"Normal SuccessfulMountVolume p"}, w.recorder.all())

	w.plugin.fail("TearDown", errBroken)
	w.failed(w.unmount("data", "p"))
	w.executor.Forget(volumeName("data"))
	w.succeeded(w.remount("data", "p"))
	assert.Equal(t, []string{"Normal SuccessfulMountVolume p", "Warning FailedUnmount p", "Normal SuccessfulMountVolume p"}, w.recorder.all())
}

// TestThePersistentVolumeIsToldOfWhatAnUnknownPodLost.
func TestThePersistentVolumeIsToldOfWhatAnUnknownPodLost(t *testing.T) {
	w := stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	v := w.mounted("data", "p")
	v.Pod = nil
	w.succeeded(w.executor.UnmountVolume(t.Context(), v, w.actual))
	assert.Equal(t, []string{"Normal SuccessfulMountVolume p", "Normal SuccessfulUnmountVolume data"}, w.recorder.all())
}
