package volumemanager

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// TestAWorkerThatIsStuckIsReplaced: with one worker for each plugin, a call that hangs keeps no other plugin waiting, and its own for
// ten seconds. When it returns, its volume is carried on.
func TestAWorkerThatIsStuckIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{WorkersPerPlugin: 1})
		m := w.prepare()
		require.NoError(t, w.plugins.InitPlugins(t.Context(), &instantPlugin{}))
		w.run()
		m.PodsComplete()
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodSetUp, fake.HangUntil(release))
		stuck, same, other := podOf("stuck", "-scratch"), podOf("same", "-scratch"), instantPod("other")
		for _, pod := range []*v1.Pod{stuck, same, other} {
			require.NoError(t, m.AddPod(t.Context(), pod))
			synctest.Wait()
		}
		ready := func(pod *v1.Pod) bool { return m.PodStatus(pod.UID)[0].Phase == PhaseMounted }
		assert.True(t, ready(other))
		assert.False(t, ready(same), "the one worker is in a call")
		pass(11 * time.Second)
		assert.True(t, ready(same))
		assert.False(t, ready(stuck))

		require.NoError(t, m.RemovePod(stuck.UID))
		close(release)
		require.NoError(t, m.WaitForUnmount(t.Context(), stuck))
		w.remove(same)
		w.remove(other)
		w.isClean()
	})
}

// TestACallThatEndsItsGoroutineEndsNoVolume: the volume is carried on by another worker.
func TestACallThatEndsItsGoroutineEndsNoVolume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := benchManagerOf(t, &quittingPlugin{}, Options{WorkersPerPlugin: 1})
		pod := instantPod("web")
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		require.NoError(t, m.RemovePod(pod.UID))
		require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	})
}

// TestWhatAPodOfASharedVolumeCostsDoesNotGrow with the number of its pods.
func TestWhatAPodOfASharedVolumeCostsDoesNotGrow(t *testing.T) {
	allocated := func(n int) float64 {
		pods := diskPods(n, func(int) string { return "disk" })
		m := benchManagerOf(t, &instantDisk{}, Options{Resync: -1})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, pod := range pods {
			require.NoError(t, m.AddPod(t.Context(), pod))
		}
		for _, pod := range pods {
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	}
	few, many := allocated(100), allocated(1000)
	assert.Less(t, many, 1.5*few, "%.0f bytes for each of 100 pods, %.0f of 1,000", few, many)
}

// quittingPlugin is one whose first call of SetUp ends its goroutine.
type quittingPlugin struct {
	instantPlugin
	quit bool
}

func (p *quittingPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	path := p.host.GetPodVolumeDir(pod.UID, p.GetPluginName(), spec.Name())
	return &quittingVolume{instantVolume: instantVolume{path: path}, plugin: p}, nil
}

type quittingVolume struct {
	instantVolume
	plugin *quittingPlugin
}

func (v *quittingVolume) SetUp(context.Context, volume.MounterArgs) error {
	if !v.plugin.quit {
		v.plugin.quit = true
		runtime.Goexit()
	}
	return nil
}
