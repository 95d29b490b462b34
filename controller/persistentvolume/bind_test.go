package persistentvolume

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

type objectList = []store.Object

// The rows of the decision table for a claim that was never bound.
func TestUnboundClaim(t *testing.T) {
	tests := map[string]struct {
		objects objectList
		bound   string // the volume that the claim gets; empty means that it stays pending
		reason  string // why it is pending
		says    string
	}{
		"1 a volume fits":                                {objects: objectList{newClaim("c"), newVolume("a")}, bound: "a"},
		"2 no class and no volume":                       {objects: objectList{newClaim("c")}, reason: ReasonFailedBinding, says: "no storage class is set"},
		"3 class open, no default class":                 {objects: objectList{newClaim("c", openClass)}, reason: ReasonFailedBinding, says: "no storage class is set"},
		"4 a class that does not exist":                  {objects: objectList{newClaim("c", ofClass("gone"))}, reason: ReasonProvisioningFailed, says: `"gone" does not exist`},
		"5 names a volume that is missing":               {objects: objectList{newClaim("c", names("a"))}, reason: ReasonFailedBinding, says: `volume "a"`},
		"6 names a volume that is free":                  {objects: objectList{newClaim("c", names("b")), newVolume("a"), newVolume("b")}, bound: "b"},
		"7 names one that is too small":                  {objects: objectList{newClaim("c", names("a")), newVolume("a", func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size("1Mi") })}, reason: ReasonVolumeMismatch, says: "smaller"},
		"8 names one of another class":                   {objects: objectList{newClaim("c", names("a")), newVolume("a", func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = "x" })}, reason: ReasonVolumeMismatch, says: "class"},
		"9 names one of another mode":                    {objects: objectList{newClaim("c", names("a")), newVolume("a", func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) })}, reason: ReasonVolumeMismatch, says: "mode"},
		"10 names one that is reserved":                  {objects: objectList{newClaim("c", names("a")), newVolume("a", refTo("c", ""))}, bound: "a"},
		"11 names one of another claim":                  {objects: objectList{newClaim("c", names("a")), newVolume("a", refTo("d", ""))}, reason: ReasonFailedBinding, says: "different claim"},
		"12 a volume is reserved for it":                 {objects: objectList{newClaim("c"), newVolume("a"), newVolume("b", refTo("c", ""))}, bound: "b"},
		"13 asks for no size":                            {objects: objectList{newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }), newVolume("a")}, reason: ReasonFailedBinding, says: "no size"},
		"14 a class without provisioner":                 {objects: objectList{newClaim("c", ofClass("x")), noProvisioner("x")}, reason: ReasonFailedBinding, says: "create a PersistentVolume of it"},
		"15 a provisioner that is not here":              {objects: objectList{newClaim("c", ofClass("x")), foreign("x")}, reason: ReasonExternalProvisioning, says: "example.com/other"},
		"16 class that waits for its node":               {objects: objectList{newClaim("c", ofClass("x")), newClass("x", late)}, reason: ReasonWaitForFirstConsumer, says: "first consumer"},
		"17 it waits although a volume fits":             {objects: objectList{newClaim("c", ofClass("x")), newClass("x", late), newVolume("a", inClass("x"))}, reason: ReasonWaitForFirstConsumer, says: "first consumer"},
		"18 with the node known it gets that":            {objects: objectList{newClaim("c", ofClass("x"), onNode("n")), newClass("x", late), newVolume("a", inClass("x"))}, bound: "a"},
		"20 no controller has synced it yet":             {objects: objectList{newClaim("c", ofClass("x")), newClass("x"), newVolume("a", inClass("x"), noPhase)}, bound: "a"},
		"21 given one by a controller that is another's": {objects: objectList{newClaim("c", names("a"), chosen), newVolume("a", refTo("d", ""))}, reason: ReasonFailedBinding, says: "a controller chose it"},
		"22 reserved on another node, no other is taken": {objects: objectList{
			newClaim("c", onNode("n")), newVolume("a", refTo("c", ""), onlyOn("m")), newVolume("b"),
		}, reason: ReasonVolumeMismatch, says: "node affinity"},
		"23 its pod has no node yet": {objects: objectList{
			newClaim("c", ofClass("x")), newClass("x", late), newPod("p", "", "c"),
		}, reason: ReasonWaitForPodScheduled, says: `"default/p"`},
		"24 its pod has a node": {objects: objectList{
			newClaim("c", ofClass("x")), newClass("x", late), newPod("p", "n", "c"), newVolume("a", inClass("x"), onlyOn("n")), newVolume("b", inClass("x"), onlyOn("m")),
		}, bound: "a"},
		"25 names one that is being deleted": {objects: objectList{newClaim("c", names("a")), newVolume("a", dying)}, reason: ReasonVolumeMismatch, says: "deleted"},
		"26 names one that lacks a mode": {objects: objectList{newClaim("c", names("a")), newVolume("a", func(pv *v1.PersistentVolume) {
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
		})}, reason: ReasonVolumeMismatch, says: "access mode"},
		"27 names one of another attributes class": {objects: objectList{newClaim("c", names("a")), newVolume("a", func(pv *v1.PersistentVolume) {
			pv.Spec.VolumeAttributesClassName = ptr("gold")
		})}, reason: ReasonVolumeMismatch, says: "attributes"},
		"19 reserved for it, block": {objects: objectList{newClaim("c"), newVolume("a", refTo("c", "uid-c"), func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) })}, reason: ReasonVolumeMismatch, says: "mode"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.objects, func(t *testing.T, w *world) {
				c := w.settle()
				why, pending := c.Why(types.NamespacedName{Namespace: "default", Name: "c"})
				if tt.bound != "" {
					w.requireBound("c", tt.bound)
					assert.False(t, pending)
					assert.Empty(t, w.reasons())
					return
				}
				require.True(t, pending)
				assert.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
				assert.Contains(t, why.String(), tt.says)
				assert.Equal(t, []PendingClaim{why}, c.Pending())
				assert.Equal(t, tt.reason, why.Reason)
				want := []string{tt.reason}
				if tt.reason == ReasonVolumeMismatch {
					want = append(want, tt.reason) // the volume is told too
				}
				assert.Equal(t, want, w.reasons(), "each is told once")
			})
		})
	}
}

func TestWhatAClaimWaitsForWakesIt(t *testing.T) {
	t.Run("a volume", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c"), newClaim("d", names("b"), ofClass("y"))}, func(_ *testing.T, w *world) {
			w.settle()
			w.create(newVolume("a", func(pv *v1.PersistentVolume) { pv.Status = v1.PersistentVolumeStatus{} }))
			w.create(newVolume("b", inClass("y"), func(pv *v1.PersistentVolume) { pv.Status = v1.PersistentVolumeStatus{} }))
			sleepUntilIdle()
			w.requireBound("d", "b")
			w.requireBound("c", "a")
		})
	})
	t.Run("a class", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c", ofClass("x"))}, func(_ *testing.T, w *world) {
			w.settle()
			w.create(newClass("x"))
			idle()
			w.requireBound("c", "pvc-uid-c")
		})
	})
	t.Run("a default class", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c", openClass)}, func(t *testing.T, w *world) {
			w.settle()
			class := newClass("x")
			class.Annotations = map[string]string{AnnDefaultClass: "true"}
			w.create(class)
			idle()
			w.requireBound("c", "pvc-uid-c")
			assert.Equal(t, "x", *w.claim("c").Spec.StorageClassName)
		})
	})
}

// The rows of the decision table for a claim that was bound once.
func TestBoundClaim(t *testing.T) {
	tests := map[string]struct {
		objects objectList
		phase   v1.PersistentVolumeClaimPhase
		reason  string
	}{
		"1 its reference was cleared":      {objectList{newClaim("c", completed), newVolume("a")}, v1.ClaimLost, objects.ReasonClaimLost},
		"2 its volume is gone":             {objectList{newClaim("c", completed, names("a"))}, v1.ClaimLost, objects.ReasonClaimLost},
		"3 its volume names no claim":      {objectList{newClaim("c", completed, names("a")), newVolume("a")}, v1.ClaimBound, ""},
		"4 all is well":                    {objectList{newClaim("c", completed, names("a")), newVolume("a", refTo("c", "uid-c"))}, v1.ClaimBound, ""},
		"5 its volume is another claim's":  {objectList{newClaim("c", completed, names("a")), newVolume("a", refTo("d", "uid-d")), newClaim("d", names("a"))}, v1.ClaimLost, objects.ReasonClaimMisbound},
		"6 its volume is of another UID":   {objectList{newClaim("c", completed, names("a")), newVolume("a", refTo("c", "older"))}, v1.ClaimLost, objects.ReasonClaimMisbound},
		"7 lost, and a volume of its name": {objectList{newClaim("c", completed, names("a"), lost), newVolume("a")}, v1.ClaimLost, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.objects, func(t *testing.T, w *world) {
				w.settle()
				assert.Equal(t, tt.phase, w.claim("c").Status.Phase)
				if tt.reason == "" {
					assert.Empty(t, w.reasons())
				} else {
					assert.Contains(t, w.reasons(), tt.reason)
				}
				if tt.phase == v1.ClaimBound {
					assert.Equal(t, types.UID("uid-c"), w.volume("a").Spec.ClaimRef.UID)
					assert.Equal(t, v1.VolumeBound, w.volume("a").Status.Phase)
				}
			})
		})
	}
}

func TestBindWritesInOrder(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a", kept)}, func(t *testing.T, w *world) {
		s := &crashing{Store: w.store, left: 100}
		w.start(s, Options{Workers: 1})
		idle()
		w.requireBound("c", "a")
		assert.Equal(t, []string{
			"update PersistentVolume", "update PersistentVolume", "update PersistentVolumeClaim", "update PersistentVolumeClaim",
		}, s.log())
	})
}

// A controller that dies after any of its writes leaves what the next one finishes.
func TestBindSurvivesACrashAfterEachWrite(t *testing.T) {
	for writes := range 5 {
		t.Run(fmt.Sprintf("after write %d", writes), func(t *testing.T) {
			all := objectList{newClaim("c"), newVolume("a", kept), newVolume("b", kept, inClass("other"))}
			inWorld(t, all, func(t *testing.T, w *world) {
				_, stop := w.start(&crashing{Store: w.store, left: writes}, Options{Workers: 1})
				idle()
				stop()
				w.create(newVolume("0")) // a better match, by name: what was begun must be finished all the same
				w.settle()
				if writes == 0 {
					w.requireBound("c", "0")
					return
				}
				w.requireBound("c", "a")
				assert.Nil(t, w.volume("0").Spec.ClaimRef)
			})
		})
	}
}

// A claim that was deleted and made again never gets what the first one had.
func TestARecreatedClaimInheritsNothing(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a", policy(v1.PersistentVolumeReclaimRetain))}, func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("c", "a")
		w.delete(newClaim("c"))
		w.create(newClaim("c", func(c *v1.PersistentVolumeClaim) { c.UID = "second" }))
		idle()
		assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
		assert.Equal(t, types.UID("uid-c"), w.volume("a").Spec.ClaimRef.UID)
		assert.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
		w.create(newVolume("b"))
		idle()
		w.requireBound("c", "b")
	})
}

// The same while no controller ran: the controller sees only the second claim.
func TestARecreatedClaimInheritsNothingWhileTheControllerWasAway(t *testing.T) {
	second := newClaim("c", func(c *v1.PersistentVolumeClaim) { c.UID = "second" })
	for name, pv := range map[string]*v1.PersistentVolume{
		"half bound": newVolume("a", refTo("c", "first")),
		"bound": newVolume("a", refTo("c", "first"), volumeAnnotation(objects.AnnBoundByController, objects.Yes), func(pv *v1.PersistentVolume) {
			pv.Status.Phase = v1.VolumeBound
		}),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{second, pv}, func(t *testing.T, w *world) {
				w.settle()
				assert.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
				assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
			})
		})
	}
}

// Claims that are many get volumes that are many, each its own.
func TestManyClaimsGetOneVolumeEach(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.start(w.store, Options{})
		for i := range 50 {
			w.create(newClaim(fmt.Sprintf("c-%d", i)))
			w.create(newVolume(fmt.Sprintf("v-%d", i), func(pv *v1.PersistentVolume) { pv.Status = v1.PersistentVolumeStatus{} }))
		}
		idle()
		sleepUntilIdle()
		owners := map[string]bool{}
		for i := range 50 {
			claim := w.claim(fmt.Sprintf("c-%d", i))
			require.Equal(t, v1.ClaimBound, claim.Status.Phase, claim.Name)
			require.False(t, owners[claim.Spec.VolumeName], "volume %s has two claims", claim.Spec.VolumeName)
			owners[claim.Spec.VolumeName] = true
			w.requireBound(claim.Name, claim.Spec.VolumeName)
		}
	})
}

// chosen makes the reference of a claim one that a controller made.
func chosen(claim *v1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, objects.AnnBoundByController, objects.Yes)
}

// dying makes a volume one that is deleted as soon as it is in the store.
func dying(pv *v1.PersistentVolume) {
	pv.Finalizers = []string{"example.com/stays"}
	pv.Labels = map[string]string{"dying": objects.Yes}
}

func onlyOn(node string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
	}
}

// newPod returns a pod on a node, "" for none, that uses a claim.
func newPod(name, node, claim string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	pod.Spec.NodeName = node
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return pod
}

func lost(claim *v1.PersistentVolumeClaim) { claim.Status.Phase = v1.ClaimLost }

func inClass(name string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = name }
}

func onNode(name string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, AnnSelectedNode, name)
	}
}

// kept makes a volume one that has our finalizer already.
func kept(pv *v1.PersistentVolume) { pv.Finalizers = []string{objects.FinalizerVolumeProtection} }

// noPhase makes a volume one that was only just created.
func noPhase(pv *v1.PersistentVolume) { pv.Status.Phase = "" }
