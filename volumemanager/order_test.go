package volumemanager

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
)

// TestStatusAndStatsAreInTheOrderOfPods has pods in every state that changes where a row is: two namespaces of which one begins with
// the other's name, volumes that the pod names in another order, a pod whose teardown hangs, and one that was removed while its volume
// was being set up, whose name is not known any more.
func TestStatusAndStatsAreInTheOrderOfPods(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		in := func(namespace string, pod *v1.Pod) *v1.Pod {
			pod.Namespace = namespace
			return pod
		}
		leaves := in("a", podOf("leaves", "-two", "-one"))
		for _, pod := range []*v1.Pod{in("a-b", podOf("first", "-data")), leaves, in("a", podOf("keeps", "-two", "-one"))} {
			require.NoError(t, m.AddPod(t.Context(), pod))
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		}
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodTearDown, fake.HangUninterruptible(release), fake.HangUninterruptible(release))
		require.NoError(t, m.RemovePod(leaves.UID))
		w.plugin.Inject(fake.MethodSetUp, fake.HangUninterruptible(release))
		late := in("z", podOf("late", "-data"))
		require.NoError(t, m.AddPod(t.Context(), late))
		synctest.Wait()
		require.NoError(t, m.RemovePod(late.UID))
		synctest.Wait()

		var rows []string
		for _, s := range m.Status().Volumes {
			rows = append(rows, s.PodName.String()+" "+s.OuterName)
		}
		set := []string{"a/keeps one", "a/keeps two", "a/leaves one", "a/leaves two", "a-b/first data"}
		assert.Equal(t, slices.Concat([]string{"/ "}, set, []string{"/ "}), rows, "the last one is the volume itself, which no pod uses")
		rows = nil
		for _, s := range m.Stats(0) {
			rows = append(rows, s.PodName.String()+" "+s.OuterName)
		}
		assert.Equal(t, set, rows)
		assert.Len(t, m.PodStatus(leaves.UID), 2)
		assert.Len(t, m.PodStatus(late.UID), 1)
		close(release)
	})
}
