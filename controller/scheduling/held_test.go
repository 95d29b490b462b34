package scheduling

import (
	"maps"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
)

// A claim is deleted and created again while a pod has it reserved. The end of that reservation leaves the next pod's in
// place.
func TestTheEndOfAReservationLeavesTheNextOne(t *testing.T) {
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newClaim("more"), newVolume("v"))), func(w *world) {
		first := w.reserve(newPod("p", "data"), "node-1")
		w.delete(newClaim("data"))
		w.create(newClaim("data", func(c *v1.PersistentVolumeClaim) { c.UID = "again" }))
		synctest.Wait()
		second := w.reserve(newPod("q", "data"), "node-2")
		first.Release()
		w.requireRefused(newPod("r", "more"), "node-1", NoVolume)
		require.Equal(w.t, map[types.NamespacedName]string{nn("data"): "v"}, second.Volumes())
		second.Release()
		w.requireFits(newPod("r", "more"), everywhere...)
	})
}

// A volume stays reserved while another object names and leaves it.
func TestAReservedVolumeThatIsNamedForATimeStaysReserved(t *testing.T) {
	for name, reserved := range map[string]func(*v1.PersistentVolume){
		"it names no claim": func(*v1.PersistentVolume) {}, "it names the claim": refTo("data", ""),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newClaim("more"), newVolume("v", reserved))), func(w *world) {
				r := w.reserve(newPod("p", "data"), "node-1")
				change(w, newVolume("v"), refTo("another", ""))
				change(w, newVolume("v"), func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil })
				w.requireRefused(newPod("q", "more"), "node-1", NoVolume)
				r.Release()
				w.requireFits(newPod("q", "more"), everywhere...)
			})
		})
	}
}

// The reserved volume of a claim is deleted. The next pod with the claim gets another volume, and has that reserved.
func TestAReservationEndsWithItsVolume(t *testing.T) {
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newClaim("more"), newVolume("v"), newVolume("w"))), func(w *world) {
		first := w.reserve(newPod("p", "data"), "node-1")
		w.delete(newVolume("v"))
		second := w.reserve(newPod("q", "data"), "node-2")
		require.Equal(w.t, map[types.NamespacedName]string{nn("data"): "w"}, second.Volumes())
		require.ErrorIs(w.t, w.bind(w.t.Context(), first).end(), ErrPlaceAnew)
		first.Release()
		w.requireRefused(newPod("r", "more"), "node-1", NoVolume)
		second.Release()
		w.requireFits(newPod("r", "more"), everywhere...)
	})
}

// The store shows a pod only after Reserve. When the pod is deleted, its reservation ends.
func TestAReservationEndsWithAPodThatIsSeenLater(t *testing.T) {
	p := newPod("p", "data")
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newClaim("more"), newVolume("v"))), func(w *world) {
		r := w.reserve(p, "node-1")
		w.create(p)
		synctest.Wait()
		b := w.bind(w.t.Context(), r)
		b.requireRuns()
		w.delete(p)
		require.ErrorIs(w.t, b.end(), ErrPodGone)
		require.Empty(w.t, w.s.index.reservations)
		require.Empty(w.t, w.s.index.claimReservations)
	})
}

func TestBindEndsWhenThePodHasEnded(t *testing.T) {
	p := newPod("p", "data")
	objects := objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newVolume("v"), p))
	failed := func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }
	inWorld(t, Options{}, objects, func(w *world) {
		b := w.bind(w.t.Context(), w.reserve(p, "node-1"))
		change(w, p, failed)
		require.ErrorIs(w.t, b.end(), ErrPodGone)
	})
	inWorld(t, Options{}, objects, func(w *world) { // before Reserve
		change(w, p, failed)
		r := w.reserve(p, "node-1")
		require.ErrorIs(w.t, w.bind(w.t.Context(), r).end(), ErrPodGone)
		require.Nil(w.t, w.volume("v").Spec.ClaimRef)
		r.Release()
	})
}

// A pod without a UID is deleted and created again on its node, with other volumes, before the scheduler sees either.
func TestAPodOnItsNodeMayHaveOtherVolumes(t *testing.T) {
	x := newIndex(nil)
	x.refreshNode("node-1", newNode("node-1"))
	for _, name := range []string{"a", "b"} {
		x.refreshVolume(name, newVolume(name))
		x.refreshClaim(nn(name), newClaim(name, boundTo(name)))
	}
	at := func(p *v1.Pod) *v1.Pod { p.UID = ""; return on(p, "node-1") }
	disk := func(name string) *v1.Pod {
		p := newPod("p", "b")
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{
			GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: name},
		}})
		return at(p)
	}
	x.refreshPod(nn("p"), at(newPod("p", "a")))
	left, _ := x.refreshPod(nn("p"), at(newPod("p", "b")))
	require.Equal(t, []types.NamespacedName{nn("a")}, left.claims, "the change is told")
	require.Nil(t, x.podsOf[nn("a")])
	require.Len(t, x.podsOf[nn("b")], 1)
	x.refreshPod(nn("p"), disk("one"))
	x.refreshPod(nn("p"), disk("two"))
	require.Equal(t, "two", x.pods[nn("p")].disks[0].GCEPersistentDisk.PDName)
	left, _ = x.refreshPod(nn("p"), disk("two"))
	require.Nil(t, left)
}

// The disks of a pod that its caller changes after Reserve stay reserved.
func TestReserveKeepsNoDiskOfItsCaller(t *testing.T) {
	disk := func(pod string) *v1.Pod {
		p := newPod(pod)
		p.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}}}
		return p
	}
	inWorld(t, Options{}, threeNodes(), func(w *world) {
		p := disk("p")
		w.reserve(p, "node-1")
		p.Spec.Volumes[0].GCEPersistentDisk.PDName = "other"
		w.requireRefused(disk("q"), "node-1", DiskConflict)
	})
}

// A claim without a volume is no volume whose handle looks like the claim's name.
func TestAHandleMayLookLikeAClaim(t *testing.T) {
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("made", makes), newCSINode("node-1", 1), newClaim("new", ofClass("made"))), bound("data", "v", func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.VolumeHandle = "default/new"
	}), list(on(newPod("p", "data"), "node-1"))), func(w *world) {
		w.requireRefused(newPod("q", "new"), "node-1", AttachLimit)
	})
}

// Volumes may be called while Bind runs; the race detector watches.
func TestVolumesWhileBindRuns(t *testing.T) {
	inWorld(t, Options{}, twoClaims(), func(w *world) {
		r := w.reserve(newPod("p", "b", "a"), "node-1")
		b := &binding{w: w, ended: make(chan error, 1)}
		var both sync.WaitGroup
		both.Go(func() { b.ended <- r.Bind(w.t.Context()) })
		both.Go(func() {
			for range 100 {
				assert.Len(w.t, r.Volumes(), 2)
			}
		})
		b.requireRuns()
		w.finish("a", "a1")
		w.finish("b", "b1")
		require.NoError(w.t, b.end())
		both.Wait()
	})
}

// Preemptable is true only if the pod fits without the pods that it names.
func TestPreemptionIsPromisedOnlyWhereItHelps(t *testing.T) {
	alone := newClaim("alone", boundTo("va"), claimModes(v1.ReadWriteOncePod))
	base := objectsOf(threeNodes(), bound("data", "v"), bound("more", "w"), bound("else", "x"), list(alone, newVolume("va"), newClass("made", makes)))
	user := on(newPod("user", "alone"), "node-2")
	inWorld(t, Options{}, objectsOf(base, list(newCSINode("node-1", 1), newCSINode("node-3", 2), user, on(newPod("other", "more"), "node-1"), on(newPod("third", "more", "else"), "node-3"))), func(w *world) {
		why := w.requireRefused(newPod("p", "alone"), "node-1", InUseByPod)
		assert.Equal(w.t, []Reason{InUseByPod, AttachLimit}, why.Reasons)
		assert.Equal(w.t, []types.NamespacedName{nn("other"), nn("user")}, why.Pods)
		assert.Equal(w.t, "csi.example", why.Driver)
		assert.True(w.t, why.Preemptable())
		why = w.requireRefused(newPod("p", "alone", "data"), "node-1", InUseByPod)
		assert.False(w.t, why.Preemptable(), "the node cannot attach two volumes")
		assert.NotEmpty(w.t, why.Pods)
		assert.True(w.t, w.requireRefused(newPod("p", "alone", "data"), "node-3", InUseByPod).Preemptable())
		disk := func(name string, claims ...string) *v1.Pod {
			p := newPod(name, claims...)
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{
				AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"},
			}})
			return p
		}
		w.create(on(disk("fourth"), "node-2"))
		synctest.Wait()
		why = w.requireRefused(disk("p", "alone"), "node-2", InUseByPod)
		assert.Equal(w.t, []Reason{InUseByPod, DiskConflict}, why.Reasons)
		assert.Equal(w.t, []types.NamespacedName{nn("fourth"), nn("user")}, why.Pods)
		w.delete(user)
		w.delete(newPod("other"))
		w.requireFits(newPod("p", "alone"), "node-1", "node-2")
	})
	inWorld(t, Options{}, objectsOf(base, list(user, newClaim("late", ofClass("made")), newVolume("there", refTo("late", ""), atNode("node-1")))), func(w *world) {
		why := w.requireRefused(newPod("p", "alone", "late"), "node-3", InUseByPod)
		assert.Equal(w.t, []Reason{NodeAffinity, InUseByPod}, why.Reasons)
		assert.Equal(w.t, []types.NamespacedName{nn("user")}, why.Pods)
		assert.False(w.t, why.Preemptable())
	})
}

// Changes that help only some pods are told, too.
func TestChangesThatHelpAreTold(t *testing.T) {
	var told told
	base := objectsOf(threeNodes(), list(
		newClass("made", makes), newDriver(), newCapacity("node-1", "60Gi", largest("50Gi")),
		newClaim("data", ofClass("made"), asks("50Gi")), newClaim("more", ofClass("made"), asks("50Gi")), newAttachment("at", "v", "node-1"), newVolume("v"),
	))
	capacity := newCapacity("node-1", "")
	raised := func(object string) ClusterEvent {
		return ClusterEvent{Kind: CapacityRaised, Name: nn(object), Class: "made"}
	}
	inWorld(t, told.options(), base, func(w *world) {
		told.take()
		change(w, capacity, func(c *storagev1.CSIStorageCapacity) { c.Capacity.Add(c.Capacity.DeepCopy()) })
		assert.Equal(w.t, []ClusterEvent{raised("node-1")}, told.take(), "room for two volumes")
		change(w, capacity, func(c *storagev1.CSIStorageCapacity) { largest("60Gi")(c) })
		assert.Equal(w.t, []ClusterEvent{raised("node-1")}, told.take(), "room for a larger volume")
		change(w, capacity, func(c *storagev1.CSIStorageCapacity) { segment(v1.LabelHostname, "node-2")(c) })
		assert.Equal(w.t, []ClusterEvent{raised("node-1")}, told.take(), "room elsewhere")
		change(w, capacity, func(c *storagev1.CSIStorageCapacity) { c.StorageClassName = "other" })
		assert.Equal(w.t, []ClusterEvent{{Kind: CapacityRaised, Name: nn("node-1"), Class: "other"}}, told.take(), "room for another class")
		change(w, newAttachment("at", "", ""), func(at *storagev1.VolumeAttachment) { at.Spec.NodeName = "node-2" })
		assert.Equal(w.t, []ClusterEvent{{Kind: AttachmentGone, Name: types.NamespacedName{Name: "at"}, Node: "node-1"}}, told.take())
		change(w, newAttachment("at", "", ""), func(at *storagev1.VolumeAttachment) { at.Spec.Source.PersistentVolumeName = ptr("w") })
		assert.Equal(w.t, []ClusterEvent{{Kind: AttachmentGone, Name: types.NamespacedName{Name: "at"}, Node: "node-2"}}, told.take())
		change(w, newClaim("data"), claimAnnotation(objects.AnnSelectedNode, "node-1"))
		told.take()
		change(w, newClaim("data"), claimAnnotation(objects.AnnSelectedNode, "node-2"))
		assert.Contains(w.t, told.take(), ClusterEvent{Kind: CapacityRaised, Class: "made", Node: "node-1"}, "the volume is made elsewhere")
	})
	assert.True(t, Waits{reasons: 1 << Zone}.EndedBy(ClusterEvent{Kind: ReservationReleased}), "the claim may get a volume of another zone")
}

// A node that gets another label gets and loses the capacity of a segment that is given by expressions.
func TestASegmentByExpressionsFollowsItsNodes(t *testing.T) {
	in := func(c *storagev1.CSIStorageCapacity) {
		c.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: v1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: []string{"node-1", "node-3"}},
			{Key: "zone", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}},
		}}
	}
	data := newPod("p", "data")
	other := func(c *storagev1.CSIStorageCapacity) {
		in(c)
		c.NodeTopology.MatchExpressions[0].Values = []string{"node-2"}
	}
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("made", makes), newDriver(), newClaim("data", ofClass("made")), newCapacity("other", "9Gi", other), newCapacity("segment", "9Gi", in))), func(w *world) {
		w.requireFits(data, "node-3")
		change(w, newNode("node-1"), func(n *v1.Node) { n.Labels["zone"] = "b" })
		w.requireFits(data, "node-1", "node-3")
		change(w, newNode("node-3"), func(n *v1.Node) { n.Labels["zone"] = "a" })
		w.requireFits(data, "node-1")
	})
}

// Scores are the nodes of Nodes.
func TestScoresHasTheNodes(t *testing.T) {
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newVolume("tight", atNode("node-1")), newVolume("loose", holding("4Gi"), atNode("node-2")))), func(w *world) {
		result := w.requireFits(newPod("p", "data"), "node-1", "node-2")
		require.Equal(w.t, map[string]int{"node-1": 100, "node-2": 25}, maps.Collect(result.Scores()))
		for range result.Scores() {
			break // it ends early
		}
	})
}
