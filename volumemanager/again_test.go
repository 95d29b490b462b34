package volumemanager

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// TestAPodThatIsAddedAgainIsAnotherPod: the manager tears the first pod's volumes down before it sets volumes up for the
// second pod, whatever had begun when the first was removed.
func TestAPodThatIsAddedAgainIsAnotherPod(t *testing.T) {
	for name, ready := range map[string]bool{"ready": true, "being set up": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.start()
				w.claim("data")
				pod := podOf("a", "data", "-own")
				require.NoError(t, w.manager.AddPod(t.Context(), pod))
				seen := make(chan struct{})
				if ready {
					require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
					w.plugin.Inject(fake.MethodTearDown, fake.HangUntil(seen), fake.HangUntil(seen))
				}
				require.NoError(t, w.manager.RemovePod(pod.UID))
				require.NoError(t, w.manager.AddPod(t.Context(), pod))
				if ready {
					assert.Empty(t, w.manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod)), "they are the first pod's")
				}
				close(seen)
				require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
				synctest.Wait()
				if ready {
					assert.Equal(t, map[string]int{"SetUp": 4, "TearDown": 2}, w.countSetUps())
				}
				assert.Len(t, w.manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod)), 2)
				w.remove(pod)
				w.isClean()
			})
		})
	}
}

// countSetUps returns how often the plugin set a volume up for a pod, and how often it tore one down.
func (w *world) countSetUps() map[string]int {
	counts := map[string]int{}
	for _, c := range w.plugin.Calls() {
		if c.Method == fake.MethodSetUp || c.Method == fake.MethodTearDown {
			counts[string(c.Method)]++
		}
	}
	return counts
}

// TestABlockVolumeOfAPodThatIsAddedAgainIsMappedAgain: the manager unmaps the volume for the first pod before it maps it for
// the second.
func TestABlockVolumeOfAPodThatIsAddedAgainIsMappedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		w.blockClaim("disk")
		pod := blockPodOf("a", "disk")
		w.add(pod)
		unmapped := w.blocks.unmaps()
		require.NoError(t, w.manager.RemovePod(pod.UID))
		w.add(pod)
		assert.Equal(t, unmapped+1, w.blocks.unmaps())
		w.remove(pod)
		w.isClean()
	})
}

// TestWhatARestartFoundIsNotForAPodThatWasRemovedAndAdded: a pod that is removed and added after a restart does not keep the
// set-up that the restart found. The order of the removal and the reading of the records does not matter.
func TestWhatARestartFoundIsNotForAPodThatWasRemovedAndAdded(t *testing.T) {
	for name, early := range map[string]bool{"before the records are read": true, "after": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: t.TempDir()})
				w.start()
				pod := podOf("a", "-own")
				w.add(pod)
				require.NoError(t, w.stop())

				w.prepare()
				if !early {
					w.run()
				}
				require.NoError(t, w.manager.RemovePod(pod.UID))
				require.NoError(t, w.manager.AddPod(t.Context(), pod))
				if early {
					w.run()
				}
				require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
				assert.Equal(t, map[string]int{"SetUp": 1, "TearDown": 1}, w.countSetUps())
				w.manager.PodsComplete()
				w.remove(pod)
				w.isClean()
			})
		})
	}
}

// TestWhatIsMountedIsNotSwapped: an update that gives a mounted volume another source or read-only flag is refused, and the
// pod keeps its mount.
func TestWhatIsMountedIsNotSwapped(t *testing.T) {
	group := int64(1234)
	for name, change := range map[string]func(*v1.Pod){
		"source":                 func(p *v1.Pod) { p.Spec.Volumes[1].CSI.VolumeAttributes = map[string]string{"a": "b"} },
		"read-only flag":         func(p *v1.Pod) { yes := true; p.Spec.Volumes[1].CSI.ReadOnly = &yes },
		"read-only of the claim": func(p *v1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true },
		"group":                  func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.start()
				w.claim("data")
				pod := podOf("a", "data", "-own")
				w.add(pod)
				before := w.changes()
				changed := pod.DeepCopy()
				change(changed)
				for _, call := range []func() error{
					func() error { return w.manager.UpdatePod(t.Context(), changed) },
					func() error { return w.manager.AddPod(t.Context(), changed) },
				} {
					err := call()
					require.ErrorIs(t, err, ErrVolumeChanged)
					require.ErrorIs(t, err, volume.ErrInvalid)
				}
				synctest.Wait()
				assert.Equal(t, before, w.changes())

				require.NoError(t, w.manager.RemovePod(pod.UID))
				w.add(changed)
				w.remove(changed)
				w.isClean()
			})
		})
	}
}

// TestAPersistentVolumeThatChangesIsNotSwapped: a pod keeps its mount when its PersistentVolume changes, and the pod's
// status says why.
func TestAPersistentVolumeThatChangesIsNotSwapped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		w.claim("data")
		pod := podOf("a", "data")
		w.add(pod)
		w.changeVolume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = map[string]string{"a": "b"} })
		require.NoError(t, w.manager.UpdatePod(t.Context(), pod))
		synctest.Wait()
		rows := w.manager.PodStatus(pod.UID)
		require.Len(t, rows, 1)
		require.ErrorIs(t, rows[0].Err, ErrVolumeChanged)
		w.changeVolume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = nil })
		synctest.Wait()
		require.NoError(t, w.manager.PodStatus(pod.UID)[0].Err, "it is what it was")
		w.remove(pod)
		w.isClean()
	})
}

// changeVolume changes the PersistentVolume that a claim is bound to.
func (w *world) changeVolume(claim string, change func(*v1.PersistentVolume)) {
	w.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", "pv-"+claim)
	require.NoError(w.t, err)
	change(pv)
	_, err = w.store.Update(w.t.Context(), pv)
	require.NoError(w.t, err)
}
