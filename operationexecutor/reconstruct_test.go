package operationexecutor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

func foundVolume() operationexecutor.VolumeToReconstruct {
	return operationexecutor.VolumeToReconstruct{
		PluginName: pluginName, PodUID: "p", InnerVolumeSpecName: "data", VolumePath: "/pods/p/volumes/x/data",
	}
}

func foundDevice() operationexecutor.VolumeToReconstruct {
	v := foundVolume()
	v.VolumeMode = v1.PersistentVolumeBlock
	return v
}

func TestWhatWasFoundIsReconstructed(t *testing.T) {
	w := newWorld(t, setup{abilities: volume.CapReconstruct | volume.CapBlock})
	w.able.found = volume.ReconstructedVolume{Spec: spec("data"), SELinuxMountContext: "label"}
	found, err := w.executor.ReconstructVolume(t.Context(), foundVolume())
	require.NoError(t, err)
	assert.Equal(t, w.able.found, found)

	w.able.found.Spec = block(spec("data"))
	found, err = w.executor.ReconstructVolume(t.Context(), foundDevice())
	require.NoError(t, err)
	assert.Equal(t, volume.ReconstructedVolume{Spec: w.able.found.Spec}, found)
	assert.Equal(t, []string{
		"ConstructVolumeSpec data /pods/p/volumes/x/data", "ConstructVolumeSpec",
		"ConstructBlockVolumeSpec p data /pods/p/volumes/x/data", "ConstructBlockVolumeSpec",
	}, w.history.all())
}

// TestWhatIsNotWhatWasFoundIsRefused: an answer without a spec, of another name, or of the other mode.
func TestWhatIsNotWhatWasFoundIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		v    operationexecutor.VolumeToReconstruct
		spec *volume.Spec
	}{
		"nothing":                         {foundVolume(), nil},
		"nothing, for a device":           {foundDevice(), nil},
		"nothing, of no name":             {operationexecutor.VolumeToReconstruct{PluginName: pluginName}, nil},
		"another name":                    {foundVolume(), spec("other")},
		"a device for a mount":            {foundVolume(), block(spec("data"))},
		"a mount for a device":            {foundDevice(), spec("data")},
		"an empty spec":                   {foundVolume(), &volume.Spec{}},
		"a mode that there is not":        {foundVolume(), strangeMode(spec("data"))},
		"such a mode, for a device":       {foundDevice(), strangeMode(spec("data"))},
		"an inline volume, for a device":  {foundDevice(), volume.NewSpecFromVolume(&v1.Volume{Name: "data"})},
		"another name, inline, for a pod": {foundVolume(), volume.NewSpecFromVolume(&v1.Volume{Name: "other"})},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{abilities: volume.CapReconstruct | volume.CapBlock})
			w.able.found.Spec = test.spec
			found, err := w.executor.ReconstructVolume(t.Context(), test.v)
			require.ErrorIs(t, err, volume.ErrInvalid)
			assert.Zero(t, found)
		})
	}
}

func strangeMode(s *volume.Spec) *volume.Spec {
	mode := v1.PersistentVolumeMode("Strange")
	s.PersistentVolume.Spec.VolumeMode = &mode
	return s
}

// TestReconstructionIsGuardedLikeEveryCall, holds no key, and fails with the plugin's own class.
func TestReconstructionIsGuardedLikeEveryCall(t *testing.T) {
	for name, bad := range badCalls() {
		for _, method := range []string{"ConstructVolumeSpec", "ConstructBlockVolumeSpec"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				w := newWorld(t, setup{abilities: volume.CapReconstruct | volume.CapBlock})
				w.plugin.on(method, bad)
				v := foundVolume()
				if method == "ConstructBlockVolumeSpec" {
					v = foundDevice()
				}
				for range 2 { // There is no back-off: each volume that was found is asked about once.
					found, err := w.executor.ReconstructVolume(t.Context(), v)
					var typed *volume.Error
					require.ErrorAs(t, err, &typed)
					assert.Equal(t, pluginName, typed.Plugin)
					require.NotErrorIs(t, err, volume.ErrUncertain)
					assert.Zero(t, found)
				}
			})
		}
	}
	w := newWorld(t, setup{abilities: volume.CapExpand})
	for _, v := range []operationexecutor.VolumeToReconstruct{foundVolume(), foundDevice()} {
		_, err := w.executor.ReconstructVolume(t.Context(), v)
		require.ErrorIs(t, err, volume.ErrUnsupported)
		v.PluginName = "example.com/missing"
		_, err = w.executor.ReconstructVolume(t.Context(), v)
		require.ErrorIs(t, err, volume.ErrNoPlugin)
	}
}

func TestAReconstructionThatHangsIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{abilities: volume.CapReconstruct, executor: operationexecutor.ExecutorOptions{Grace: time.Second}})
		release := w.hang("ConstructVolumeSpec")
		start := time.Now()
		_, err := w.executor.ReconstructVolume(t.Context(), foundVolume())
		var lost *outcome.AbandonedError
		require.ErrorAs(t, err, &lost)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, operationexecutor.DefaultTimeout+time.Second, time.Since(start))
		release()
		synctest.Wait()
		require.NoError(t, w.executor.Wait(t.Context()))
	})
}
