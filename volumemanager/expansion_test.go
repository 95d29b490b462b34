package volumemanager

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
)

func storage(size string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
}

// grownClaim is a claim that has 512Mi of a volume that was given 1Gi, which is what the fake's storage has.
func (w *world) grownClaim(name string) {
	w.claim(name, func(pv *v1.PersistentVolume) { pv.Spec.Capacity = storage("1Gi") })
	w.changeClaim(name, func(pvc *v1.PersistentVolumeClaim) {
		pvc.Status.Capacity, pvc.Status.AllocatedResources = storage("512Mi"), storage("1Gi")
		pvc.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
			v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending,
		}
	})
}

func (w *world) claimStatus(name string) v1.PersistentVolumeClaimStatus {
	pvc, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", name)
	require.NoError(w.t, err)
	return pvc.Status
}

// TestAPodGetsItsVolumeAtTheSizeThatTheClaimWasGiven, and the claim says so afterwards.
func TestAPodGetsItsVolumeAtTheSizeThatTheClaimWasGiven(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.grownClaim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		size, ok := w.backend.SizeOn("disk-data", testNode)
		assert.True(t, ok)
		assert.EqualValues(t, 1<<30, size)
		has := w.claimStatus("data").Capacity[v1.ResourceStorage]
		assert.Equal(t, "1Gi", has.String())
		assert.Empty(t, w.claimStatus("data").AllocatedResourceStatuses)
		w.remove(pod)
		w.isClean()
	})
}

// TestAPodDoesNotStartOnAVolumeThatIsTooSmall, is tried again, and can be removed meanwhile.
func TestAPodDoesNotStartOnAVolumeThatIsTooSmall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.grownClaim("data")
		m := w.start()
		m.PodsComplete()
		w.plugin.Inject(fake.MethodNodeExpand, fake.FailN(2, errStore))
		began := time.Now()
		pod := podOf("web", "data")
		w.add(pod)
		assert.Positive(t, time.Since(began), "it waited for the back-off of two failures")

		w.grownClaim("other")
		w.plugin.Inject(fake.MethodNodeExpand, fake.FailN(-1, errStore))
		other := podOf("db", "other")
		require.NoError(t, m.AddPod(t.Context(), other))
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodNodeExpand, 4))
		w.remove(other)
		w.remove(pod)
		w.isClean()
	})
}

// TestAClaimThatTookTheNameOfAnotherIsNotTouched: UIDs are compared.
func TestAClaimThatTookTheNameOfAnotherIsNotTouched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.grownClaim("data")
		pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "pv-data")
		require.NoError(t, err)
		c := populator.ClaimStatus{Store: w.store}
		claim, err := c.Claim(t.Context(), volume.NewSpecFromPersistentVolume(pv, false))
		require.NoError(t, err)
		assert.Equal(t, "data", claim.Name)

		pv.Spec.ClaimRef.UID = "another"
		_, err = c.Claim(t.Context(), volume.NewSpecFromPersistentVolume(pv, false))
		require.ErrorIs(t, err, ErrClaimNotReady)
		pv.Spec.ClaimRef.UID, pv.Name = claim.UID, "another"
		_, err = c.Claim(t.Context(), volume.NewSpecFromPersistentVolume(pv, false))
		require.ErrorIs(t, err, ErrClaimNotReady)
	})
}

// TestTheNodeAffinityOfAVolumeIsChecked against the labels of the node; one that the store does not know has its name.
func TestTheNodeAffinityOfAVolumeIsChecked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		only := func(key, value string) func(*v1.PersistentVolume) {
			return func(pv *v1.PersistentVolume) {
				pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}},
				}}}}
			}
		}
		w.claim("here", only(v1.LabelHostname, string(testNode)))
		w.claim("zone", only(v1.LabelTopologyZone, "a"))
		m := w.start()
		m.PodsComplete()
		w.add(podOf("web", "here"))
		pod := podOf("db", "zone")
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodAttach, 2))
		time.Sleep(time.Second) // of the bubble
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, volume.ErrNodeAffinity)

		w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode), Labels: map[string]string{v1.LabelTopologyZone: "a"}}})
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	})
}
