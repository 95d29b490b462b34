package volumemanager

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/volume"
)

// levels makes labels of levels.
type levels struct{}

func (levels) FileLabel(o *v1.SELinuxOptions) (string, error) {
	if o.User != "" {
		return "", fmt.Errorf("user %q: %w", o.User, volume.ErrInvalid)
	}
	return "system_u:object_r:container_file_t:" + o.Level, nil
}

func withSELinux(t *testing.T) Options {
	t.Helper()
	o := withRecords(t)
	o.SELinux, o.SELinuxMount = levels{}, cache.SELinuxMountAll
	return o
}

// labelled gives all containers of a pod a level.
func labelled(pod *v1.Pod, level string) *v1.Pod {
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	return pod
}

func TestPodsOfOneLabelShareAVolumeAndOthersWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withSELinux(t))
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		first, same, other := labelled(podOf("first", "data"), "s0:c1"), labelled(podOf("same", "data"), "s0:c1"), labelled(podOf("other", "data", "-scratch"), "s0:c2")
		w.add(first)
		w.add(same)
		require.NoError(t, m.AddPod(t.Context(), other))
		pass(time.Hour)
		status := m.PodStatus(other.UID)
		require.Len(t, status, 2)
		var conflict *cache.SELinuxConflictError
		require.ErrorAs(t, status[0].Err, &conflict)
		assert.Equal(t, "system_u:object_r:container_file_t:s0:c2", conflict.Label)
		assert.Equal(t, testPluginName, status[0].Plugin)
		assert.Equal(t, PhaseMounted, status[1].Phase, "the other volume is ready")
		planned := m.Status().Planned
		pass(24 * time.Hour)
		assert.Equal(t, planned, m.Status().Planned, "no volume is planned again and again")

		began := time.Now()
		w.remove(first)
		w.remove(same)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), other))
		assert.Zero(t, time.Since(began), "it is woken")
		row, _ := m.actual.GetAttachedVolume(m.PodStatus(other.UID)[0].Volume)
		assert.Equal(t, "system_u:object_r:container_file_t:s0:c2", row.SELinuxMountContext, "it was staged anew")
		assert.Empty(t, m.populator.Waiting())
		w.remove(other)
		w.isClean()
	})
}

// TestAPodThatComesWhileAnotherLabelIsTakenDownWaitsForThat: the desired state agrees, the mount does not yet.
func TestAPodThatComesWhileAnotherLabelIsTakenDownWaitsForThat(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withSELinux(t))
		w.claim("data")
		m := w.prepare()
		first, second := labelled(podOf("first", "data"), "s0:c1"), labelled(podOf("second", "data"), "s0:c2")
		require.NoError(t, m.AddPod(t.Context(), first))
		w.run()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), first))
		require.NoError(t, w.stop())

		m = w.start()
		require.NoError(t, m.AddPod(t.Context(), second))
		synctest.Wait()
		require.ErrorIs(t, m.PodStatus(second.UID)[0].Err, cache.ErrSELinuxMismatch)
		m.PodsComplete()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), second))
		w.remove(second)
		w.isClean()
	})
}

func TestAPodFindsItsVolumeAfterARestartWithItsLabel(t *testing.T) {
	for name, without := range map[string]volume.Capabilities{"staged": 0, "not staged": volume.CapAttach | volume.CapDeviceMount} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, withSELinux(t))
				w.without = without
				w.claim("data")
				w.start()
				pod := labelled(podOf("web", "data"), "s0:c1")
				w.add(pod)
				require.NoError(t, w.stop())
				m := w.start()
				began := time.Now()
				w.add(pod)
				assert.Zero(t, time.Since(began))
				m.PodsComplete()
				w.remove(pod)
				w.isClean()
			})
		})
	}
}
