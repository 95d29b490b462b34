package volumemanager

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// twoWorlds are two nodes in one process, on which pods and volumes have the same names.
type twoWorlds []*world

// newTwoWorlds returns nodes that each have five claims of files and five of devices and records.
func newTwoWorlds(t *testing.T) twoWorlds {
	t.Helper()
	var both twoWorlds
	for range 2 {
		w := newWorld(t, withRecords(t))
		for i := range 5 {
			w.claim(fmt.Sprint("files-", i))
			w.blockClaim(fmt.Sprint("disk-", i))
		}
		both = append(both, w)
	}
	return both
}

// everywhere does the same on all nodes at once.
func (both twoWorlds) everywhere(do func(w *world)) {
	var all sync.WaitGroup
	for _, w := range both {
		all.Go(func() { do(w) })
	}
	all.Wait()
	synctest.Wait()
}

// podsOfTwo returns pods that share volumes: pod i has the files and the device of i and those of i+1.
func podsOfTwo() []*v1.Pod {
	var pods []*v1.Pod
	for i := range 5 {
		pod := blockPodOf(fmt.Sprint("pod-", i), fmt.Sprint("disk-", i), fmt.Sprint("disk-", (i+1)%5))
		files := podOf("", fmt.Sprint("files-", i), fmt.Sprint("files-", (i+1)%5), "-scratch")
		pod.Spec.Volumes = append(pod.Spec.Volumes, files.Spec.Volumes...)
		pod.Spec.Containers[0].VolumeMounts = files.Spec.Containers[0].VolumeMounts
		pods = append(pods, pod)
	}
	return pods
}

// traces is all that one node has left in the world.
type traces struct {
	mounts, binds []string
	records       map[string]string
}

func (w *world) traces() traces {
	w.t.Helper()
	return traces{mounts: w.mounts(), binds: w.blocks.mapped(), records: w.records()}
}

// TestTwoManagersInOneProcessNeverMeet: each has its own node, plugins, records and subscribers, and pods and volumes of
// the same names on both are two. Mounted and mapped ones, over a restart of one of them.
func TestTwoManagersInOneProcessNeverMeet(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		both := newTwoWorlds(t)
		for _, w := range both {
			w.start().PodsComplete()
		}
		followers := []*follower{follow(t.Context(), both[0].manager), follow(t.Context(), both[1].manager)}
		both.everywhere(func(w *world) {
			var pods sync.WaitGroup
			for _, pod := range podsOfTwo() {
				pods.Go(func() {
					assert.NoError(t, w.manager.AddPod(t.Context(), pod))
					assert.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
				})
			}
			pods.Wait()
		})
		for i, w := range both {
			assert.Len(t, w.manager.Status().Volumes, 25)
			assert.Len(t, w.blocks.mapped(), 10)
			assert.Empty(t, w.manager.Hung())
			followers[i].isTrue(t, w.manager)
		}
		other := both[1].traces()

		require.NoError(t, both[0].stop())
		pods := podsOfTwo()
		both[0].start()
		both[0].add(pods[0])
		both[0].manager.PodsComplete()
		require.NoError(t, both[0].manager.WaitForAllPodsUnmount(t.Context(), pods[1:]))
		synctest.Wait()
		assert.Len(t, both[0].blocks.mapped(), 2)
		assert.Equal(t, other, both[1].traces(), "what the other one has stays as it is")
		both[0].remove(pods[0])
		both[0].isClean()
		assert.Equal(t, other, both[1].traces())
		followers[1].isTrue(t, both[1].manager)
		for _, pod := range pods {
			assert.Len(t, both[1].manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod)), 5)
		}
		for _, pod := range pods {
			require.NoError(t, both[1].manager.RemovePod(pod.UID))
		}
		both[1].isClean()
	})
}

// TestTwoManagersOfOneNodeDoNotRunBesideEachOther: the records are of one of them.
func TestTwoManagersOfOneNodeDoNotRunBesideEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.blockClaim("disk")
		first := w.start()
		pod := blockPodOf("web", "disk")
		w.add(pod)
		second, err := New(w.plugins, w.options)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, second.Run(ctx), volume.ErrInUse)
		assert.Len(t, w.blocks.mapped(), 1)
		first.PodsComplete()
		w.remove(pod)
		w.isClean()
	})
}
