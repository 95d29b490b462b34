package persistentvolume

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Where this controller differed from Kubernetes' without a reason; docs/acceptance.md has the list.

func TestAReservedVolumeThatLacksAnAccessModeIsNotBound(t *testing.T) {
	onlyRead := func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany} }
	for name, uid := range map[string]string{"by name": "", "by UID": "uid-c"} {
		t.Run("reserved "+name, func(t *testing.T) {
			inWorld(t, objectList{newClaim("c"), newVolume("a", refTo("c", types.UID(uid)), onlyRead)}, func(t *testing.T, w *world) {
				c := w.settle()
				assert.Empty(t, w.claim("c").Spec.VolumeName)
				why, pending := c.Why(store.NameOf(newClaim("c")))
				require.True(t, pending)
				assert.Equal(t, ReasonVolumeMismatch, why.Reason)
				assert.Contains(t, why.Message, "lacks an access mode")
				w.create(newVolume("b"))
				idle()
				w.requireBound("c", "b")
			})
		})
	}
}

// A provisioner in another program waits for the annotation with its name, and where the class waits for a consumer for that of the node.
func TestExternalProvisionersSeeTheClaim(t *testing.T) {
	const provisioner = "example.com/other"
	notHere := func(class *storagev1.StorageClass) { class.Provisioner = provisioner }
	t.Run("at once", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c", ofClass("x")), newClass("x", notHere)}, func(t *testing.T, w *world) {
			w.settle()
			claim := w.claim("c")
			assert.Equal(t, provisioner, claim.Annotations[objects.AnnStorageProvisioner])
			assert.Equal(t, provisioner, claim.Annotations["volume.beta.kubernetes.io/storage-provisioner"], "for old ones")
			assert.NotContains(t, claim.Annotations, AnnSelectedNode)
			assert.NotContains(t, claim.Finalizers, objects.FinalizerProvisioning, "nothing was begun here")
			w.create(newVolume("made", inClass("x"), refTo("c", "uid-c"), noPhase))
			idle()
			w.requireBound("c", "made")
		})
	})
	t.Run("once the node is known", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c", ofClass("x")), newClass("x", notHere, late)}, func(t *testing.T, w *world) {
			w.settle()
			assert.NotContains(t, w.claim("c").Annotations, objects.AnnStorageProvisioner)
			w.create(newPod("p", "n", "c"))
			idle()
			assert.Equal(t, provisioner, w.claim("c").Annotations[objects.AnnStorageProvisioner])
			assert.Equal(t, "n", w.claim("c").Annotations[AnnSelectedNode])
		})
	})
	t.Run("one whose plugin here makes no volumes", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c", ofClass("x")), newClass("x", notHere)}, func(t *testing.T, w *world) {
			plugin := fake.NewPlugin(fake.PluginOptions{Name: provisioner, Mounter: noMounts{}, Without: volume.CapProvision})
			require.NoError(t, w.plugins.InitPlugins(t.Context(), plugin))
			w.settle()
			assert.Equal(t, provisioner, w.claim("c").Annotations[objects.AnnStorageProvisioner])
		})
	})
}

func TestTheAttributesClassIsInTheStatusOfABoundClaim(t *testing.T) {
	gold := func(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = ptr("gold") }
	wantsGold := func(claim *v1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = ptr("gold") }
	for name, with := range map[string]func(*world) store.Store{
		"in one transaction": func(w *world) store.Store { return w.store },
		"in four writes":     func(w *world) store.Store { return &crashing{Store: w.store, left: 100} },
	} {
		t.Run(name, func(t *testing.T) {
			all := objectList{newClaim("c", wantsGold), newVolume("a", gold), newClaim("plain"), newVolume("b")}
			inWorld(t, append(all, newClaim("made", ofClass("x"), wantsGold), newClass("x"), attributesClass("gold")), func(t *testing.T, w *world) {
				w.start(with(w), Options{})
				idle()
				w.requireBound("c", "a")
				assert.Equal(t, ptr("gold"), w.claim("c").Status.CurrentVolumeAttributesClassName)
				assert.Nil(t, w.claim("plain").Status.CurrentVolumeAttributesClassName)
				w.requireBound("made", "pvc-uid-made")
				assert.Equal(t, ptr("gold"), w.claim("made").Status.CurrentVolumeAttributesClassName)
				assert.Equal(t, ptr("gold"), w.volume("pvc-uid-made").Spec.VolumeAttributesClassName)
				assert.Equal(t, map[string]string{fake.ParameterTier: "gold"}, w.plugin.Backend().Attributes("pvc-uid-made"))
			})
		})
	}
	t.Run("later it is another's to write", func(t *testing.T) {
		silver := func(claim *v1.PersistentVolumeClaim) {
			claim.Status.CurrentVolumeAttributesClassName = ptr("silver")
			claim.Status.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany} // so that the status is written
		}
		inWorld(t, objectList{newClaim("c", completed, names("a"), silver), newVolume("a", gold, refTo("c", "uid-c"))}, func(t *testing.T, w *world) {
			w.settle()
			assert.Equal(t, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, w.claim("c").Status.AccessModes)
			assert.Equal(t, ptr("silver"), w.claim("c").Status.CurrentVolumeAttributesClassName)
		})
	})
}

// TestADyingClaimThatWasGivenAnAttributesClassGoes: what was made for it before is found and deleted.
func TestADyingClaimThatWasGivenAnAttributesClassGoes(t *testing.T) {
	inWorld(t, objectList{newClass("x")}, func(t *testing.T, w *world) {
		w.settle()
		w.plugin.Inject(fake.MethodProvision, fake.FailN(1, volume.Uncertain(errCrashed)))
		claim := newClaim("c", ofClass("x"))
		w.create(claim)
		idle()
		changed := w.claim("c")
		require.Contains(t, changed.Finalizers, objects.FinalizerProvisioning)
		changed.Spec.VolumeAttributesClassName = ptr("gold")
		_, err := store.Update(t.Context(), w.store, changed)
		require.NoError(t, err)
		sleepUntilIdle()
		require.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
		require.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		w.delete(claim)
		sleepUntilIdle()
		_, err = store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "c")
		require.ErrorIs(t, err, store.ErrNotFound)
		assert.Empty(t, w.plugin.Backend().Handles())
	})
}

// If another program removes the reference and the marks of a claim, its status has nothing of its former volume.
func TestAClaimThatFallsBackToPendingForgetsItsVolume(t *testing.T) {
	had := func(claim *v1.PersistentVolumeClaim) {
		claim.Status = v1.PersistentVolumeClaimStatus{
			Phase: v1.ClaimBound, Capacity: size("5Gi"), AccessModes: claim.Spec.AccessModes, CurrentVolumeAttributesClassName: ptr("gold"),
		}
	}
	for name, tt := range map[string]struct {
		claim func(*v1.PersistentVolumeClaim)
		phase v1.PersistentVolumeClaimPhase
	}{
		"nothing fits":          {func(*v1.PersistentVolumeClaim) {}, v1.ClaimPending},
		"it names none that is": {names("gone"), v1.ClaimPending},
		"its class waits":       {ofClass("late"), v1.ClaimPending},
		"others are to make it": {ofClass("other"), v1.ClaimPending},
		"one cannot be made":    {ofClass("x"), v1.ClaimPending},
		"it is lost":            {completed, v1.ClaimLost},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{newClaim("c", had, tt.claim), newClass("late", late), foreign("other"), newClass("x")}, func(t *testing.T, w *world) {
				w.plugin.Inject(fake.MethodProvision, fake.Fail(errors.New("no room")))
				w.settle()
				status := w.claim("c").Status
				assert.Equal(t, tt.phase, status.Phase)
				assert.Nil(t, status.Capacity)
				assert.Nil(t, status.AccessModes)
				assert.Nil(t, status.CurrentVolumeAttributesClassName)
			})
		})
	}
}

func TestAClaimWhoseChosenVolumeIsAnothersSaysSo(t *testing.T) {
	inWorld(t, objectList{newClaim("c", names("a"), chosen), newVolume("a", refTo("d", "uid-d")), newClaim("d", names("a"))}, func(t *testing.T, w *world) {
		c := w.settle()
		why, pending := c.Why(store.NameOf(newClaim("c")))
		require.True(t, pending)
		assert.Equal(t, ReasonFailedBinding, why.Reason)
		assert.Contains(t, why.Message, `volume "a" already bound to a different claim: a controller chose it`)
		assert.Equal(t, []string{ReasonFailedBinding}, w.reasons())
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), ReasonFailedBinding)
		w.requireBound("d", "a")
	})
}

// A scheduler's choice of a node is no order to make a volume: see docs/decisions/0090.
func TestAFreeVolumeOnTheSelectedNodeIsTakenBeforeOneIsMade(t *testing.T) {
	all := objectList{newClaim("c", ofClass("x"), onNode("n")), newClass("x", late), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{v1.LabelHostname: "n"}}}}
	inWorld(t, append(all, newVolume("a", inClass("x"), onlyOn("n"))), func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("c", "a")
		assert.Zero(t, w.calls(fake.MethodProvision))
	})
	inWorld(t, append(all, newVolume("a", inClass("x"), onlyOn("elsewhere"))), func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("c", "pvc-uid-c")
		assert.Nil(t, w.volume("a").Spec.ClaimRef)
	})
}

// From 9.3E on a size is no number of bytes that 64 bits hold.
func TestVolumesOfAnySizeAreMatched(t *testing.T) {
	sized := func(s string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size(s) }
	}
	asks := func(s string) func(*v1.PersistentVolumeClaim) {
		return func(claim *v1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(s) }
	}
	for name, tt := range map[string]struct {
		claim   *v1.PersistentVolumeClaim
		volumes objectList
		want    string
	}{
		"a small claim":             {newClaim("c"), objectList{newVolume("a", sized("10E"))}, "a"},
		"a small claim, the limit":  {newClaim("c"), objectList{newVolume("a", sized("9223372036854775807"))}, "a"},
		"a huge claim":              {newClaim("c", asks("10E")), objectList{newVolume("a", sized("11E"))}, "a"},
		"a huge claim, too small":   {newClaim("c", asks("12E")), objectList{newVolume("a", sized("11E"))}, ""},
		"the smallest of huge ones": {newClaim("c", asks("10E")), objectList{newVolume("a", sized("20E")), newVolume("b", sized("11E"))}, "b"},
		"a smaller one before that": {newClaim("c"), objectList{newVolume("a", sized("16E")), newVolume("b", sized("2Gi"))}, "b"},
	} {
		for order, claimFirst := range map[string]bool{"is there": false, "comes later": true} {
			t.Run(name+", the volume "+order, func(t *testing.T) {
				inWorld(t, nil, func(t *testing.T, w *world) {
					first, second := tt.volumes, objectList{tt.claim}
					if claimFirst && len(tt.volumes) == 1 {
						first, second = second, first
					}
					w.start(w.store, Options{})
					for _, batch := range []objectList{first, second} {
						for _, obj := range batch {
							w.create(obj)
						}
						idle()
					}
					if tt.want == "" {
						assert.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
						return
					}
					w.requireBound("c", tt.want)
				})
			})
		}
	}
	t.Run("none of that size is made", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c", asks("10E"), ofClass("x")), newClass("x")}, func(t *testing.T, w *world) {
			c := w.settle()
			why, _ := c.Why(store.NameOf(newClaim("c")))
			assert.Contains(t, why.String(), "more than any volume can hold")
			assert.Zero(t, w.calls(fake.MethodProvision))
		})
	})
}

// Tools count warnings, and match reasons.
func TestEventsOfClaimsAreThoseOfKubernetes(t *testing.T) {
	inTree := newClass("x", func(class *storagev1.StorageClass) { class.Provisioner = "kubernetes.io/not-here" })
	block := func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }
	for name, tt := range map[string]struct {
		objects objectList
		want    []string
	}{
		"no class and no volume":           {objectList{newClaim("c")}, []string{"Normal FailedBinding"}},
		"no default class":                 {objectList{newClaim("c", openClass)}, []string{"Normal FailedBinding"}},
		"a class that is missing":          {objectList{newClaim("c", ofClass("gone"))}, []string{"Warning ProvisioningFailed"}},
		"a provisioner of Kubernetes' own": {objectList{newClaim("c", ofClass("x")), inTree}, []string{"Warning ProvisioningFailed"}},
		"a provisioner elsewhere":          {objectList{newClaim("c", ofClass("x")), foreign("x")}, []string{"Normal ExternalProvisioning"}},
		"a volume of another claim":        {objectList{newClaim("c", names("a")), newVolume("a", refTo("d", ""))}, []string{"Warning FailedBinding"}},
		"it waits for a consumer":          {objectList{newClaim("c", ofClass("x")), newClass("x", late)}, []string{"Normal WaitForFirstConsumer"}},
		"bound by UID to one of another mode": {
			objectList{newClaim("c"), newVolume("a", refTo("c", "uid-c"), block)}, []string{"Warning VolumeMismatch", "Warning VolumeMismatch"},
		},
		// These differ; docs/porting.md says why.
		"a class without a provisioner":      {objectList{newClaim("c", ofClass("x")), noProvisioner("x")}, []string{"Warning FailedBinding"}},
		"it names a volume that is missing":  {objectList{newClaim("c", names("a"))}, []string{"Warning FailedBinding"}},
		"reserved by name, of another mode":  {objectList{newClaim("c"), newVolume("a", refTo("c", ""), block)}, []string{"Warning VolumeMismatch", "Warning VolumeMismatch"}},
		"it names one that does not fit":     {objectList{newClaim("c", names("a")), newVolume("a", block)}, []string{"Warning VolumeMismatch", "Warning VolumeMismatch"}},
		"each names the other, another mode": {objectList{newClaim("c", names("a")), newVolume("a", refTo("c", ""), block)}, []string{"Warning VolumeMismatch", "Warning VolumeMismatch"}},
		"its selector is malformed":          {objectList{newClaim("c", badSelector)}, []string{"Warning FailedBinding"}},
		"it asks for nothing":                {objectList{newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil })}, []string{"Warning FailedBinding"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.objects, func(t *testing.T, w *world) {
				w.settle()
				var got []string
				for _, event := range w.events.Events() {
					got = append(got, event.Type+" "+event.Reason)
				}
				assert.Equal(t, tt.want, got)
			})
		})
	}
}

func badSelector(claim *v1.PersistentVolumeClaim) {
	claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
}
