package volumemanager

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// waiting starts a wait and returns how it ended, if it has, once everything has settled.
func waiting(wait func() error) (ended func() (error, bool)) {
	result := make(chan error, 1)
	go func() { result <- wait() }()
	return func() (error, bool) {
		synctest.Wait()
		select {
		case err := <-result:
			return err, true
		default:
			return nil, false
		}
	}
}

// TestAPodIsNotGoneWhileItIsSetUp: its volume may be there a moment after RemovePod.
func TestAPodIsNotGoneWhileItIsSetUp(t *testing.T) {
	for _, volumeName := range []string{"data", "-scratch"} {
		inBubble(t, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.claim("data")
			m := w.start()
			m.PodsComplete()
			release := make(chan struct{})
			w.plugin.Inject(fake.MethodSetUp, fake.HangUntil(release))
			pod := podOf("web", volumeName)
			require.NoError(t, m.AddPod(t.Context(), pod))
			synctest.Wait()
			require.NoError(t, m.RemovePod(pod.UID))
			ended := waiting(func() error { return m.WaitForUnmount(t.Context(), pod) })
			_, gone := ended()
			assert.False(t, gone, "it is being set up")
			assert.Equal(t, PhaseMounting, m.PodStatus(pod.UID)[0].Phase)
			assert.Equal(t, m.PodStatus(pod.UID)[0], m.Status().Volumes[0])
			close(release)
			err, gone := ended()
			require.NoError(t, err)
			assert.True(t, gone)
			w.isClean()
			assert.True(t, m.reconciler.IsQuiet())
		})
	}
}

func TestAWaitThatEndsNamesWhatIsBeingSetUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		release := make(chan struct{})
		defer close(release)
		w.plugin.Inject(fake.MethodSetUp, fake.HangUninterruptible(release))
		pod := podOf("web", "-scratch")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		require.NoError(t, m.RemovePod(pod.UID))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var notReady *volume.NotReadyError
		require.ErrorAs(t, m.WaitForUnmount(ctx, pod), &notReady)
		assert.Equal(t, "gone", notReady.Awaited)
		require.Len(t, notReady.Volumes, 1)
		assert.Equal(t, testPluginName, notReady.Volumes[0].Plugin)
		assert.Equal(t, string(PhaseMounting), notReady.Volumes[0].Phase)
	})
}

// TestANodeIsNotEmptyWhileAVolumeIsAttached: nothing is known of the volume until that has ended.
func TestANodeIsNotEmptyWhileAVolumeIsAttached(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodAttach, fake.HangUntil(release))
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		require.NoError(t, m.RemovePod(pod.UID))
		ended := waiting(func() error { return m.WaitForNodeEmpty(t.Context()) })
		_, empty := ended()
		assert.False(t, empty, "it is being attached")
		close(release)
		err, empty := ended()
		require.NoError(t, err)
		assert.True(t, empty)
		w.isClean()
	})
}

// TestAVolumeThatIsBeingTakenAwayIsNotReady: a pod that comes back gets it when it was set up again.
func TestAVolumeThatIsBeingTakenAwayIsNotReady(t *testing.T) {
	for name, fault := range map[string]func(<-chan struct{}) fake.Fault{
		"and goes": fake.HangUntil,
		"and stays": func(release <-chan struct{}) fake.Fault {
			f := fake.HangUntil(release)
			f.Err = volume.Transient(errors.New("not now"))
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				m := w.start()
				m.PodsComplete()
				pod := podOf("web", "-scratch")
				w.add(pod)
				release := make(chan struct{})
				w.plugin.Inject(fake.MethodTearDown, fault(release))
				require.NoError(t, m.RemovePod(pod.UID))
				synctest.Wait()
				require.NoError(t, m.AddPod(t.Context(), pod))
				ended := waiting(func() error { return m.WaitForAttachAndMount(t.Context(), pod) })
				_, ready := ended()
				assert.False(t, ready, "a teardown is under way")
				assert.Equal(t, PhaseUnmounting, m.PodStatus(pod.UID)[0].Phase)
				assert.Empty(t, m.GetMountedVolumesForPod(volume.GetUniquePodName(pod)))
				close(release)
				pass(time.Minute) // A teardown that failed is tried again before the volume is set up for the pod that came back.
				err, ready := ended()
				require.NoError(t, err)
				assert.True(t, ready)
				assert.Len(t, w.mounts(), 1)
				assert.Len(t, m.GetMountedVolumesForPod(volume.GetUniquePodName(pod)), 1)
			})
		})
	}
}
