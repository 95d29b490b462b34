package scheduling

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// rowTest is a row of docs/scheduling.md: the name begins with its number.
type rowTest struct {
	name    string
	objects []store.Object
	test    func(w *world)
}

// runRows runs rows, each in a world of three nodes and the classes late, made and now.
func runRows(t *testing.T, rows []rowTest) {
	t.Helper()
	base := objectsOf(threeNodes(), list(
		newClass("late"), newClass("made", makes), newClass("now", makes, immediate),
	))
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			inWorld(t, Options{}, objectsOf(base, r.objects), r.test)
		})
	}
}

var everywhere = []string{"node-1", "node-2", "node-3"}

func TestBeforeAnyNode(t *testing.T) {
	ephemeral := newPod("p")
	ephemeral.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	owned := func(uid types.UID) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: uid, Controller: ptr(true)}}
		}
	}
	doomed := func(c *v1.PersistentVolumeClaim) {
		c.DeletionTimestamp, c.Finalizers = ptr(metav1.Now()), []string{"example.com/stay"}
	}
	runRows(t, []rowTest{
		{"1 no claim", nil, func(w *world) {
			w.requireFits(newPod("p"), everywhere...)
			require.Zero(w.t, w.requireFits(newPod("p"), everywhere...).Score("node-1"))
		}},
		{"2 claim missing", nil, func(w *world) {
			e := w.requirePodError(newPod("p", "data"), ClaimMissing)
			require.ErrorIs(w.t, e, store.ErrNotFound)
			require.ErrorContains(w.t, e, `claim "default/data": there is no such claim`)
		}},
		{"3 ephemeral claim not made yet", nil, func(w *world) {
			e := w.requirePodError(ephemeral, ClaimNotMade)
			require.Equal(w.t, "p-scratch", e.Claim.Name)
		}},
		{"4 ephemeral claim of another", list(newClaim("p-scratch", owned("another"))), func(w *world) {
			w.requirePodError(ephemeral, ClaimNotOwned)
		}},
		{"5 claim lost", list(newClaim("data", boundTo("gone"), func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimLost })), func(w *world) {
			require.ErrorContains(w.t, w.requirePodError(newPod("p", "data"), ClaimLost), `"gone"`)
		}},
		{"6 claim being deleted", objectsOf(list(newVolume("v"))), func(w *world) {
			w.create(newClaim("data", boundTo("v"), doomed))
			w.delete(newClaim("data"))
			w.requirePodError(newPod("p", "data"), ClaimDeleted)
		}},
		{"7 unbound and immediate", list(newClaim("data", ofClass("now")), newClaim("none", ofClass("")), newClaim("odd", ofClass("missing"))), func(w *world) {
			for _, claim := range []string{"data", "none", "odd"} {
				w.requirePodError(newPod("p", claim), ClaimUnbound)
			}
		}},
		{"8 names a volume and is not bound", list(newVolume("v"), newClaim("data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" })), func(w *world) {
			w.requirePodError(newPod("p", "data"), ClaimUnbound)
		}},
		{"9 class without a mode", list(newClass("unset", func(c *storagev1.StorageClass) { c.VolumeBindingMode = nil }), newClaim("data", ofClass("unset"))), func(w *world) {
			w.requirePodError(newPod("p", "data"), ClaimUnbound)
		}},
		{"10 fully bound", bound("data", "v", atNode("node-2")), func(w *world) {
			w.requireFits(newPod("p", "data"), "node-2")
		}},
		{"11 class by annotation", list(
			newClaim("data", ofClass("now"), claimAnnotation(v1.BetaStorageClassAnnotation, "late")),
			newVolume("v", volumeClass("now"), atNode("node-3"), func(pv *v1.PersistentVolume) {
				metav1.SetMetaDataAnnotation(&pv.ObjectMeta, v1.BetaStorageClassAnnotation, "late")
			}),
		), func(w *world) { w.requireFits(newPod("p", "data"), "node-3") }},
		{"12 one picture for all nodes", list(newClaim("data"), newVolume("v")), func(w *world) {
			result := w.requireFits(newPod("p", "data"), everywhere...)
			w.delete(newVolume("v"))
			require.Equal(w.t, 3, result.Len(), "a result does not change")
			w.requireFits(newPod("p", "data"))
		}},
		{"13 zones of an unbound claim", list(newClaim("data", ofClass("made"))), func(w *world) {
			w.requireFits(newPod("p", "data"), everywhere...)
		}},
		{"14 ephemeral volumes are seen", objectsOf(list(
			newNode("zoned-a", v1.LabelTopologyZone, "a"), newNode("zoned-b", v1.LabelTopologyZone, "b"),
			newClaim("p-scratch", owned("uid-p"), boundTo("v"), claimModes(v1.ReadWriteOncePod)),
			newVolume("v", refTo("p-scratch", "uid-p-scratch"), func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{v1.LabelTopologyZone: "a"} }),
		)), func(w *world) {
			w.requireFits(ephemeral, "node-1", "node-2", "node-3", "zoned-a")
			w.requireRefused(ephemeral, "zoned-b", Zone)
			w.create(on(newPod("other", "p-scratch"), "node-1"))
			change(w, newNode("node-1"), func(*v1.Node) {})
			w.requireRefused(ephemeral, "node-1", InUseByPod)
		}},
	})
}

func TestOnANode(t *testing.T) {
	fast := func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"disk": "fast"} }
	selectsFast := func(c *v1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
	}
	data := newPod("p", "data")
	runRows(t, []rowTest{
		{"15 node affinity of a bound volume", objectsOf(
			bound("data", "v", at("zone", "a")), bound("any", "w"),
			bound("odd", "x", terms(
				v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: "Odd"}}},
				v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpNotIn, Values: []string{"a"}}}},
			)),
			bound("empty", "y", terms(v1.NodeSelectorTerm{})),
			bound("named", "z", terms(v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"node-2"}}}})),
		), func(w *world) {
			w.requireFits(data, "node-1", "node-2")
			why := w.requireRefused(data, "node-3", NodeAffinity)
			require.EqualError(w.t, why, `pod "default/p" cannot run on node "node-3": volume "v" of claim "default/data" cannot be used there: its node affinity excludes the node`)
			require.False(w.t, why.Preemptable())
			w.requireFits(newPod("p", "any"), everywhere...)
			w.requireFits(newPod("p", "odd"), "node-3")
			w.requireFits(newPod("p", "empty"))
			w.requireFits(newPod("p", "named"), "node-2")
			w.requireFits(newPod("p", "data", "named"), "node-2")
		}},
		{"16 bound to a volume that is missing", list(newClaim("data", boundTo("gone"))), func(w *world) {
			require.ErrorContains(w.t, w.requireRefused(data, "node-1", VolumeMissing), `"gone"`)
		}},
		{"18 a volume is being made for another node", list(newClaim("data", ofClass("made"), claimAnnotation(objects.AnnSelectedNode, "node-2")), newVolume("v", volumeClass("made"))), func(w *world) {
			w.requireFits(data, "node-2")
			w.requireRefused(data, "node-1", SelectedElsewhere)
			r := w.reserve(data, "node-2")
			require.Empty(w.t, r.Volumes(), "no existing volume is taken where one is being made")
			r.Release()
		}},
		{"19 each claim takes the smallest that fits", list(
			newClaim("data", asks("2Gi")), newClaim("logs", asks("1Gi")),
			newVolume("large", holding("5Gi"), atNode("node-1")), newVolume("small", holding("3Gi"), atNode("node-1")), newVolume("tiny", holding("1Mi"), atNode("node-1")),
			newVolume("other", holding("2Gi"), atNode("node-2")),
		), func(w *world) {
			both := newPod("p", "data", "logs")
			w.requireFits(both, "node-1")
			require.Equal(w.t, NoVolume, w.requireRefused(both, "node-2", NoVolume).Reason)
			r := w.reserve(both, "node-1")
			require.Equal(w.t, map[types.NamespacedName]string{nn("logs"): "small", nn("data"): "large"}, r.Volumes())
			r.Release()
		}},
		{"20 what a volume must be", list(
			newClaim("data", asks("2Gi")), newClaim("fast", selectsFast), newClaim("gold", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr("gold") }),
			newClaim("shared", claimModes(v1.ReadWriteMany)), newClaim("block", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }),
			newClaim("copy", func(c *v1.PersistentVolumeClaim) {
				c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
			}),
			newVolume("small", atNode("node-1")), newVolume("right", holding("2Gi"), atNode("node-2")),
			newVolume("class", holding("2Gi"), volumeClass("other"), atNode("node-1")),
			newVolume("theirs", holding("2Gi"), refTo("another", ""), atNode("node-1")),
			newVolume("released", holding("2Gi"), phase(v1.VolumeReleased), atNode("node-1")),
			newVolume("pending", holding("2Gi"), phase(v1.VolumePending), atNode("node-3")),
			newVolume("labelled", fast, atNode("node-1")),
			newVolume("golden", atNode("node-3"), func(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = ptr("gold") }),
			newVolume("many", atNode("node-2"), volumeModes(v1.ReadWriteOnce, v1.ReadWriteMany)),
			newVolume("raw", atNode("node-2"), func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }),
			newVolume("elsewhere", holding("2Gi"), at("zone", "c")),
		), func(w *world) {
			w.requireFits(data, "node-2", "node-3")
			w.requireFits(newPod("p", "fast"), "node-1")
			w.requireFits(newPod("p", "gold"), "node-3")
			w.requireFits(newPod("p", "shared"), "node-2")
			w.requireFits(newPod("p", "block"), "node-2")
			w.requireFits(newPod("p", "copy"))
			doomed := change(w, newVolume("right"), func(pv *v1.PersistentVolume) { pv.Finalizers = []string{"example.com/stay"} })
			w.delete(doomed)
			w.requireFits(data, "node-3")
		}},
		{"21 a volume that names the claim", list(
			newClaim("data", asks("2Gi")), newClaim("tight", asks("4Gi")), newClaim("odd"),
			newVolume("mine", holding("9Gi"), volumeClass("other"), phase(v1.VolumePending), refTo("data", ""), atNode("node-3")), newVolume("free", holding("2Gi"), atNode("node-1")),
			newVolume("unfit", holding("1Gi"), refTo("tight", "")), newVolume("fits", holding("4Gi"), atNode("node-2")),
			newVolume("modeless", refTo("odd", ""), volumeModes(v1.ReadOnlyMany), atNode("node-3")),
		), func(w *world) {
			w.requireFits(data, "node-3")
			w.requireRefused(data, "node-1", NodeAffinity)
			w.requireFits(newPod("p", "tight"), "node-2")
			w.requireFits(newPod("p", "odd"), "node-1", "node-2")
		}},
		{"22 what is left over is made", list(
			newClaim("data", ofClass("made")), newClaim("logs", ofClass("made")), newVolume("v", volumeClass("made"), atNode("node-1")),
		), func(w *world) {
			both := newPod("p", "data", "logs")
			w.requireFits(both, everywhere...)
			r := w.reserve(both, "node-1")
			require.Equal(w.t, map[types.NamespacedName]string{nn("data"): "v"}, r.Volumes())
			r.Release()
		}},
		{"23 a class that makes none", list(newClaim("data"), newClass("empty", func(c *storagev1.StorageClass) { c.Provisioner = "" }), newClaim("none", ofClass("empty"))), func(w *world) {
			w.requireRefused(data, "node-1", NoVolume)
			w.requireRefused(newPod("p", "none"), "node-1", NoVolume)
		}},
		{"24 allowed topologies", list(
			newClass("a", makes, allows("zone", "a")), newClaim("data", ofClass("a")),
			newClass("either", makes, allows("zone", "b"), allows(v1.LabelHostname, "node-1")), newClaim("both", ofClass("either")),
			newClass("never", makes, func(c *storagev1.StorageClass) { c.AllowedTopologies = []v1.TopologySelectorTerm{{}} }), newClaim("nowhere", ofClass("never")),
			newVolume("v", volumeClass("never"), atNode("node-3")),
		), func(w *world) {
			w.requireFits(data, "node-1", "node-2")
			w.requireRefused(data, "node-3", NoTopology)
			w.requireFits(newPod("p", "both"), "node-1", "node-3")
			w.requireFits(newPod("p", "nowhere"), "node-3")
			change(w, newNode("node-3"), func(n *v1.Node) { n.Labels["zone"] = "a" })
			w.requireFits(data, everywhere...)
		}},
		{"25 the class vanishes", list(newClaim("data")), func(w *world) {
			w.delete(newClass("late"))
			w.requirePodError(data, ClaimUnbound)
		}},
		{"25a a VolumeAttributesClass that is missing", list(
			newClaim("data", ofClass("made"), attributes("gold")), newClaim("other", ofClass("made"), attributes("lead")),
			newVolume("golden", volumeClass("made"), atNode("node-3"), func(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = ptr("gold") }),
			newAttributesClass("lead", "example.com/other"),
		), func(w *world) {
			why := w.requireRefused(data, "node-1", NoAttributesClass)
			require.Equal(w.t, "gold", why.AttributesClass)
			require.ErrorContains(w.t, why, `VolumeAttributesClass "gold", which does not exist`)
			require.False(w.t, why.Preemptable())
			w.requireFits(data, "node-3")
			w.requireRefused(newPod("p", "other"), "node-1", NoAttributesClass)
			w.create(newAttributesClass("gold", "csi.example"))
			synctest.Wait()
			w.requireFits(data, everywhere...)
			w.delete(newAttributesClass("gold", ""))
			w.requireFits(data, "node-3")
		}},
		{"26 all reasons are told", objectsOf(
			bound("data", "v", atNode("node-2")), bound("more", "gone"), list(newClaim("late"), newClaim("new", ofClass("made")), newDriver()),
		), func(w *world) {
			w.delete(newVolume("gone"))
			why := w.requireRefused(newPod("p", "data", "more", "late", "new"), "node-1", NodeAffinity)
			require.Equal(w.t, []Reason{VolumeMissing, NodeAffinity, NoVolume, NoCapacity}, why.Reasons)
		}},
		{"27 a verdict for each node", objectsOf(bound("data", "v", atNode("node-2"))), func(w *world) {
			result := w.requireFits(data, "node-2")
			require.Nil(w.t, result.Why("node-2"))
			require.Equal(w.t, NodeUnknown, result.Why("node-9").Reason)
			w.create(newNode("node-0"))
			require.Equal(w.t, NodeUnknown, result.Why("node-0").Reason)
		}},
	})
}

func nn(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func TestCapacities(t *testing.T) {
	data, more := newPod("p", "data"), newPod("q", "more")
	claims := list(newClaim("data", ofClass("made"), asks("50Gi")), newClaim("more", ofClass("made"), asks("50Gi")))
	runRows(t, []rowTest{
		{"28 a driver that publishes none", objectsOf(claims, list(newClaim("sizeless", ofClass("made"), func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }))), func(w *world) {
			w.requireFits(data, everywhere...)
			w.create(newDriver(func(d *storagev1.CSIDriver) { d.Spec.StorageCapacity = nil }))
			w.requireFits(data, everywhere...)
			change(w, newDriver(), func(d *storagev1.CSIDriver) { d.Spec.StorageCapacity = ptr(true) })
			w.requireFits(data)
			w.requireFits(newPod("p", "sizeless"), everywhere...)
		}},
		{"29 no capacity", objectsOf(claims, list(newDriver(), newCapacity("node-1", "49Gi"), newCapacity("node-2", "50Gi"))), func(w *world) {
			w.requireFits(data, "node-2")
			require.False(w.t, w.requireRefused(data, "node-1", NoCapacity).Preemptable())
		}},
		{"30 which capacities count", objectsOf(claims, list(newDriver(),
			newCapacity("node-1", "99Gi", func(c *storagev1.CSIStorageCapacity) { c.StorageClassName = "other" }),
			newCapacity("zone-a", "50Gi", segment("zone", "a")),
			newCapacity("node-3", "50Gi", func(c *storagev1.CSIStorageCapacity) { c.Namespace = "elsewhere" }),
		)), func(w *world) {
			w.requireFits(data, everywhere...)
			w.delete(newCapacity("zone-a", ""))
			w.requireFits(data, "node-3")
		}},
		{"31 the limit", objectsOf(claims, list(newDriver(),
			newCapacity("node-1", "99Gi", largest("49Gi")), newCapacity("node-2", "1Gi", largest("50Gi")), newCapacity("node-3", ""),
		)), func(w *world) {
			w.requireFits(data, "node-2")
			change(w, newCapacity("node-3", ""), func(c *storagev1.CSIStorageCapacity) { c.Capacity = ptr(resource.MustParse("0")) })
			w.requireFits(data, "node-2")
		}},
		{"32 the topology", objectsOf(claims, list(newDriver(),
			newCapacity("nowhere", "99Gi", func(c *storagev1.CSIStorageCapacity) { c.NodeTopology = nil }),
			newCapacity("odd", "99Gi", func(c *storagev1.CSIStorageCapacity) {
				c.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Odd"}}}
			}),
		)), func(w *world) {
			w.requireFits(data)
			w.create(newCapacity("all", "99Gi", segment()))
			change(w, newNode("node-1"), func(*v1.Node) {})
			w.requireFits(data, everywhere...)
		}},
		{"33 claims and pods before are taken off", objectsOf(claims, list(newDriver(), newCapacity("zone-a", "60Gi", segment("zone", "a")))), func(w *world) {
			w.requireFits(newPod("p", "data", "more"))
			w.requireFits(data, "node-1", "node-2")
			r := w.reserve(data, "node-1")
			w.requireRefused(more, "node-2", NoCapacity)
			_, err := w.s.Reserve(more, "node-2")
			var refused *RefusalError
			require.ErrorAs(w.t, err, &refused)
			require.Equal(w.t, NoCapacity, refused.Reason)
			r.Release()
			w.requireFits(more, "node-1", "node-2")
			change(w, newClaim("data"), func(c *v1.PersistentVolumeClaim) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, objects.AnnSelectedNode, "node-1")
			})
			w.requireRefused(more, "node-2", NoCapacity)
			w.requireFits(data, "node-1")
		}},
		{"33 until the driver says so itself", objectsOf(claims, list(newDriver(), newCapacity("node-1", "60Gi"))), func(w *world) {
			w.reserve(data, "node-1")
			change(w, newClaim("data"), boundTo("made-for-data"))
			w.requireRefused(more, "node-1", NoCapacity)
			change(w, newCapacity("node-1", ""), func(c *storagev1.CSIStorageCapacity) { c.Capacity = ptr(resource.MustParse("55Gi")) })
			w.requireFits(more, "node-1")
		}},
	})
}

func TestScores(t *testing.T) {
	runRows(t, []rowTest{
		{"34 nothing to bind", bound("data", "v"), func(w *world) {
			require.Zero(w.t, w.requireFits(newPod("p", "data"), everywhere...).Score("node-1"))
		}},
		{"35 existing and new volumes", list(
			newClaim("data", asks("1Gi")), newClaim("new", ofClass("made"), asks("10Gi")), newDriver(),
			newVolume("tight", atNode("node-1")), newVolume("loose", holding("4Gi"), atNode("node-2")),
			newCapacity("node-1", "20Gi"), newCapacity("node-2", "100Gi"),
		), func(w *world) {
			result := w.requireFits(newPod("p", "data"), "node-1", "node-2")
			assert.Equal(w.t, []int{100, 25}, []int{result.Score("node-1"), result.Score("node-2")})
			result = w.requireFits(newPod("p", "new"), "node-1", "node-2")
			assert.Equal(w.t, []int{50, 10}, []int{result.Score("node-1"), result.Score("node-2")})
			result = w.requireFits(newPod("p", "data", "new"), "node-1", "node-2")
			assert.Equal(w.t, []int{75, 18}, []int{result.Score("node-1"), result.Score("node-2")})
			assert.Zero(w.t, result.Score("node-3"))
		}},
		{"36a a capacity without a capacity", list(newClaim("new", ofClass("made")), newDriver(), newCapacity("node-1", "", largest("9Gi"))), func(w *world) {
			require.Zero(w.t, w.requireFits(newPod("p", "new"), "node-1").Score("node-1"))
		}},
	})
	t.Run("36 the other policy", func(t *testing.T) {
		inWorld(t, Options{Score: MostCapacityLeft}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"),
			newVolume("tight", atNode("node-1")), newVolume("loose", holding("4Gi"), atNode("node-2")))), func(w *world) {
			result := w.requireFits(newPod("p", "data"), "node-1", "node-2")
			assert.Equal(w.t, []int{0, 75}, []int{result.Score("node-1"), result.Score("node-2")})
		})
	})
}

// limitOf returns the CSINode of a node that can have so many volumes of a driver.
func limitOf(driver, node string, limit int32) *storagev1.CSINode {
	n := newCSINode(node, limit)
	n.Spec.Drivers[0].Name = driver
	return n
}

func TestAttachLimits(t *testing.T) {
	data := newPod("p", "data")
	runRows(t, []rowTest{
		{"49 the limit of a node", objectsOf(bound("data", "v"), list(newCSINode("node-1", 0), newCSINode("node-2", -1))), func(w *world) {
			w.requireFits(data, "node-2", "node-3")
		}},
		{"50 pods and attachments are counted", objectsOf(bound("data", "v"), bound("a", "va"), bound("b", "vb"), list(
			newCSINode("node-1", 2), newCSINode("node-2", 2), on(newPod("one", "a"), "node-1"), newAttachment("at", "vb", "node-1"),
		)), func(w *world) {
			why := w.requireRefused(data, "node-1", AttachLimit)
			assert.Equal(w.t, []any{"csi.example", 2, 2}, []any{why.Driver, why.InUse, why.Limit})
			assert.Equal(w.t, []types.NamespacedName{nn("one")}, why.Pods)
			assert.True(w.t, why.Preemptable())
			w.delete(newPod("one"))
			w.requireFits(data, everywhere...)
		}},
		{"51 one volume counts once", objectsOf(bound("data", "v"), bound("more", "w"), list(
			newCSINode("node-1", 1), on(newPod("one", "data"), "node-1"), on(newPod("two", "data"), "node-1"),
		)), func(w *world) {
			require.Nil(w.t, w.requireFits(data, "node-1").Why("node-1"))
			w.requireRefused(newPod("p", "more"), "node-1", AttachLimit)
		}},
		{"52 pods on their way are counted", objectsOf(bound("data", "v"), bound("more", "w"), list(newCSINode("node-1", 1), newPod("p", "data"))), func(w *world) {
			r := w.reserve(data, "node-1")
			w.requireRefused(newPod("q", "more"), "node-1", AttachLimit)
			change(w, newPod("p"), func(p *v1.Pod) { p.Spec.NodeName = "node-1" })
			r.Release()
			w.requireRefused(newPod("q", "more"), "node-1", AttachLimit)
			change(w, newPod("p"), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
			w.requireFits(newPod("q", "more"), everywhere...)
		}},
		{"53 which attachments count", objectsOf(bound("data", "v"), bound("b", "vb"), bound("c", "vc", func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}}
		}), list(newCSINode("node-1", 1), newAttachment("unknown", "gone", "node-1"), newAttachment("path", "vc", "node-1"))), func(w *world) {
			w.requireFits(data, everywhere...)
			w.create(newAttachment("leaving", "vb", "node-1"))
			change(w, newNode("node-1"), func(*v1.Node) {})
			w.requireFits(data, "node-2", "node-3")
		}},
		{"54 the pod's own volume is attached still", objectsOf(bound("data", "v"), list(newCSINode("node-1", 1), newAttachment("at", "v", "node-1"))), func(w *world) {
			w.requireFits(data, everywhere...)
		}},
		{"55 volumes that are not there yet", objectsOf(list(
			newCSINode("node-1", 1), newClaim("data", ofClass("made")), newClaim("new", ofClass("made")), newClaim("old"), newVolume("free"),
		)), func(w *world) {
			w.requireFits(newPod("p", "data", "new"), "node-2", "node-3")
			w.requireFits(newPod("p", "data", "old"), "node-2", "node-3")
			r := w.reserve(data, "node-1")
			w.requireFits(newPod("q", "data"), "node-1")
			w.requireRefused(newPod("q", "new"), "node-1", AttachLimit)
			r.Release()
		}},
		{"55 the driver of a plugin", objectsOf(list(
			limitOf("disk.example.com", "node-1", 1),
			newClass("disks", func(c *storagev1.StorageClass) { c.Provisioner = "example.com/disk" }),
			newClaim("data", ofClass("disks")), newClaim("new", ofClass("disks")),
		)), func(w *world) {
			w.requireFits(newPod("p", "data", "new"), "node-2", "node-3")
			w.reserve(data, "node-1")
			w.requireRefused(newPod("q", "new"), "node-1", AttachLimit)
		}},
		{"57 claims of others that are missing", objectsOf(bound("data", "v"), list(newCSINode("node-1", 1), on(newPod("one", "gone"), "node-1"))), func(w *world) {
			w.requireFits(data, everywhere...)
		}},
	})
}

func TestPodsThatExclude(t *testing.T) {
	data := newPod("p", "data")
	alone := newClaim("data", boundTo("v"), claimModes(v1.ReadWriteOncePod))
	disk := func(name string, source v1.VolumeSource) *v1.Pod {
		p := newPod(name)
		p.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: source}}
		return p
	}
	ebs := v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	gce := func(readOnly bool) v1.VolumeSource {
		return v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk", ReadOnly: readOnly}}
	}
	rbd := func(monitors ...string) v1.VolumeSource {
		return v1.VolumeSource{RBD: &v1.RBDVolumeSource{RBDPool: "pool", RBDImage: "image", CephMonitors: monitors}}
	}
	iscsi := func(portal string) v1.VolumeSource {
		return v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{IQN: "iqn.2026-01.example", TargetPortal: portal}}
	}
	zones := func(key, value string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{key: value} }
	}
	runRows(t, []rowTest{
		{"59 a claim for one pod alone", list(alone, newVolume("v"), on(newPod("user", "data"), "node-2")), func(w *world) {
			why := w.requireRefused(data, "node-1", InUseByPod)
			assert.Equal(w.t, []types.NamespacedName{nn("user")}, why.Pods)
			assert.True(w.t, why.Preemptable())
			assert.ErrorContains(w.t, why, `"default/user"`)
			w.delete(newPod("user"))
			w.requireFits(data, everywhere...)
		}},
		{"59 a volume for one node alone", objectsOf(bound("data", "v"), bound("many", "w", volumeModes(v1.ReadWriteMany)), list(
			on(newPod("user", "data"), "node-2"), on(newPod("others", "many"), "node-2"),
		)), func(w *world) {
			w.requireFits(data, "node-2")
			why := w.requireRefused(data, "node-1", InUseOnOtherNode)
			assert.Equal(w.t, []types.NamespacedName{nn("user")}, why.Pods)
			w.requireFits(newPod("p", "many"), everywhere...)
		}},
		{"60 claims of one name in two namespaces", list(alone, newVolume("v")), func(w *world) {
			other := on(newPod("user", "data"), "node-2")
			other.Namespace = "elsewhere"
			w.create(other)
			change(w, newNode("node-1"), func(*v1.Node) {})
			w.requireFits(data, everywhere...)
		}},
		{"61 inline disks", list(
			on(disk("a", ebs), "node-1"), on(disk("b", gce(true)), "node-2"), on(disk("c", rbd("m1", "m2")), "node-3"), on(disk("d", iscsi("one")), "node-1"),
		), func(w *world) {
			w.requireFits(disk("p", ebs), "node-2", "node-3")
			w.requireFits(disk("p", gce(true)), everywhere...)
			w.requireFits(disk("p", gce(false)), "node-1", "node-3")
			w.requireFits(disk("p", rbd("m2", "m3")), "node-1", "node-2")
			w.requireFits(disk("p", rbd("m3")), everywhere...)
			w.requireFits(disk("p", iscsi("two")), "node-2", "node-3")
			why := w.requireRefused(disk("p", ebs), "node-1", DiskConflict)
			assert.Equal(w.t, []types.NamespacedName{nn("a")}, why.Pods)
			assert.True(w.t, why.Preemptable())
		}},
		{"62 zone labels", objectsOf(
			bound("data", "v", zones(v1.LabelTopologyZone, "a__b")), bound("beta", "w", zones(v1.LabelFailureDomainBetaZone, "a")),
			bound("region", "x", zones(v1.LabelTopologyRegion, "r")), list(newClaim("unbound"), newVolume("free", zones(v1.LabelTopologyZone, "b"))),
			list(newNode("a", v1.LabelTopologyZone, "a"), newNode("b", v1.LabelTopologyZone, "b"), newNode("c", v1.LabelTopologyZone, "c"), newNode("old", v1.LabelFailureDomainBetaZone, "a")),
		), func(w *world) {
			w.requireFits(data, "node-1", "node-2", "node-3", "a", "b")
			w.requireFits(newPod("p", "beta"), "node-1", "node-2", "node-3", "a", "old")
			w.requireFits(newPod("p", "region"), everywhere...)
			w.requireFits(newPod("p", "unbound"), "node-1", "node-2", "node-3", "b")
			require.ErrorContains(w.t, w.requireRefused(data, "c", Zone), "another zone")
		}},
	})
}

func TestErrorsAreTyped(t *testing.T) {
	require.ErrorIs(t, &PodError{Reason: ClaimMissing}, store.ErrNotFound)
	require.Equal(t, "Reason(31)", Reason(31).String())
}
