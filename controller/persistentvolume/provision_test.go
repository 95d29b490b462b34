package persistentvolume

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

func noProvisioner(name string) *storagev1.StorageClass {
	return newClass(name, func(c *storagev1.StorageClass) { c.Provisioner = NoProvisioner })
}

func foreign(name string) *storagev1.StorageClass {
	return newClass(name, func(c *storagev1.StorageClass) { c.Provisioner = "example.com/other" })
}

// sleepUntilIdle lets the time of the bubble pass until every back-off is over.
func sleepUntilIdle() {
	time.Sleep(time.Hour)
	synctest.Wait()
}

var provisioned = objectList{newClaim("c", ofClass("x")), newClass("x")}

const made = "pvc-uid-c"

func TestProvision(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("c", made)
		pv := w.volume(made)
		assert.Equal(t, "x", pv.Spec.StorageClassName)
		assert.Equal(t, v1.PersistentVolumeReclaimDelete, pv.Spec.PersistentVolumeReclaimPolicy)
		assert.Equal(t, fake.DefaultPluginName, pv.Annotations[objects.AnnDynamicallyProvisioned])
		assert.Contains(t, pv.Annotations, objects.AnnBoundByController)
		assert.Equal(t, fake.DefaultPluginName, w.claim("c").Annotations[objects.AnnStorageProvisioner])
		assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
		assert.Equal(t, []string{objects.ReasonProvisioningSucceeded}, w.reasons())
	})
}

func TestProvisionOptionsOfTheClass(t *testing.T) {
	class := newClass("x", func(c *storagev1.StorageClass) {
		c.ReclaimPolicy = ptr(v1.PersistentVolumeReclaimRetain)
		c.MountOptions = []string{"noatime"}
		c.Parameters = map[string]string{volume.VolumeParameterFSType: "xfs"}
	})
	inWorld(t, objectList{newClaim("c", ofClass("x")), class}, func(t *testing.T, w *world) {
		w.settle()
		pv := w.volume(made)
		assert.Equal(t, v1.PersistentVolumeReclaimRetain, pv.Spec.PersistentVolumeReclaimPolicy)
		assert.Equal(t, []string{"noatime"}, pv.Spec.MountOptions)
		assert.NotContains(t, pv.Finalizers, objects.FinalizerVolume)
	})
}

func TestLateBinding(t *testing.T) {
	all := objectList{newClaim("c", ofClass("x")), newClass("x", late)}
	t.Run("an orchestrator of one node never waits", func(_ *testing.T) {
		inWorld(t, all, func(_ *testing.T, w *world) {
			w.start(w.store, Options{NodeName: "node-1"})
			idle()
			w.requireBound("c", made)
		})
	})
	t.Run("else the annotation starts it", func(t *testing.T) {
		inWorld(t, all, func(t *testing.T, w *world) {
			w.settle()
			assert.Zero(t, w.calls(fake.MethodProvision))
			w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			w.selectNode("n")
			w.requireBound("c", made)
		})
	})
	t.Run("a node that does not exist any more is given back", func(t *testing.T) {
		inWorld(t, all, func(t *testing.T, w *world) {
			w.settle()
			w.selectNode("missing")
			assert.Contains(t, w.reasons(), ReasonProvisioningFailed)
			assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
			assert.NotContains(t, w.claim("c").Annotations, AnnSelectedNode)
			assert.Zero(t, w.calls(fake.MethodProvision))
			w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			w.selectNode("n")
			sleepUntilIdle()
			w.requireBound("c", made)
		})
	})
	t.Run("a node for which the volume may have been made is kept", func(t *testing.T) {
		inWorld(t, all, func(t *testing.T, w *world) {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			w.plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errCrashed)))
			c := w.settle()
			w.create(node)
			w.selectNode("n")
			w.delete(node)
			sleepUntilIdle()
			assert.Equal(t, "n", w.claim("c").Annotations[AnnSelectedNode])
			why, _ := c.Why(claimed("c"))
			assert.Contains(t, why.Message, "create the node again, or remove annotation")
			w.create(node)
			sleepUntilIdle()
			w.requireBound("c", made)
		})
	})
	t.Run("the node of a pod that does not exist is waited for", func(t *testing.T) {
		inWorld(t, all, func(t *testing.T, w *world) {
			c := w.settle()
			w.create(newPod("p", "coming", "c"))
			sleepUntilIdle()
			why, _ := c.Why(claimed("c"))
			assert.Contains(t, why.Message, `node "coming", for which the volume is to be made`)
			assert.NotContains(t, why.Message, "scheduler")
			assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
			assert.Zero(t, w.calls(fake.MethodProvision))
			w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "coming"}})
			sleepUntilIdle()
			w.requireBound("c", made)
		})
	})
	t.Run("a failure gives the choice back", func(t *testing.T) {
		inWorld(t, all, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodProvision, fake.Fail(errors.New("no room")))
			w.settle()
			w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			w.selectNode("n")
			assert.NotContains(t, w.claim("c").Annotations, AnnSelectedNode)
		})
	})
}

func (w *world) selectNode(name string) {
	w.t.Helper()
	claim := w.claim("c")
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, AnnSelectedNode, name)
	_, err := w.store.Update(w.t.Context(), claim)
	require.NoError(w.t, err)
	idle()
}

// What a plugin quotes of a class in an error or a panic is in no event and in no reason.
func TestWhatAProvisionerQuotesOfItsClassIsInNoEvent(t *testing.T) {
	const secret = "hush-7f3a"
	class := newClass("x", func(c *storagev1.StorageClass) { c.MountOptions = []string{"pw=" + secret} })
	for _, fault := range []fake.Fault{fake.Fail(errors.New("pw=" + secret)), fake.PanicWith("pw=" + secret)} {
		inWorld(t, objectList{newClaim("c", ofClass("x")), class}, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodProvision, fault)
			c := w.settle()
			why, ok := c.Why(types.NamespacedName{Namespace: "default", Name: "c"})
			require.True(t, ok)
			require.ErrorContains(t, why.Err, "pw="+volume.Redacted)
			assert.NotContains(t, why.Err.Error(), secret)
			assert.NotContains(t, fmt.Sprintf("%+v", w.events.Events()), secret)
		})
	}
}

// Each failure is told, leaves no volume and no finalizer, and is tried again after a wait that doubles.
func TestProvisionBacksOff(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodProvision, fake.FailN(4, errors.New("no room")))
		c := w.settle()
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
		w.requireNoVolume(made)
		assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		why, ok := c.Why(types.NamespacedName{Namespace: "default", Name: "c"})
		require.True(t, ok)
		assert.Equal(t, ReasonProvisioningFailed, why.Reason)
		assert.ErrorContains(t, why.Err, "no room")
		since := why.Since
		for i, wait := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second} {
			time.Sleep(wait * 8 / 10)
			synctest.Wait()
			assert.Equal(t, 1+i, w.calls(fake.MethodProvision), "too early, after %v", wait)
			why, _ = c.Why(why.Claim)
			assert.Equal(t, since, why.Since, "the reason is the same as at first")
			time.Sleep(wait * 2 / 10)
			synctest.Wait()
			assert.Equal(t, 2+i, w.calls(fake.MethodProvision), "not after %v", wait)
			// What is left of the jitter, so that the next wait is measured from its start.
		}
		w.requireBound("c", made)
		_, ok = c.Why(types.NamespacedName{Namespace: "default", Name: "c"})
		assert.False(t, ok)
		want := slices.Repeat([]string{ReasonProvisioningFailed}, 4)
		assert.Equal(t, append(want, objects.ReasonProvisioningSucceeded), w.reasons())
	})
}

// Events of the claim do not end the wait, but a new claim of that name does not wait for the failures of the old one.
func TestBackoffBelongsToTheUID(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodProvision, fake.FailN(1, errors.New("no room")))
		w.settle()
		claim := w.claim("c")
		claim.Labels = map[string]string{"changed": "yes"}
		_, err := w.store.Update(t.Context(), claim)
		require.NoError(t, err)
		idle()
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
		w.delete(claim)
		w.create(newClaim("c", ofClass("x"), func(c *v1.PersistentVolumeClaim) { c.UID = "second" }))
		idle()
		w.requireBound("c", "pvc-second")
	})
}

// After an unknown outcome, the claim stays until it is known, and the storage is found by its name.
func TestUncertainProvisioning(t *testing.T) {
	uncertain := volume.Uncertain(errors.New("the answer was lost"))
	t.Run("is finished", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodProvision, fake.FailAfter(uncertain))
			w.settle()
			assert.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
			sleepUntilIdle()
			w.requireBound("c", made)
			assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
		})
	})
	t.Run("and undone when the claim is deleted", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodProvision, fake.FailAfter(uncertain))
			w.settle()
			require.Equal(t, []string{made}, w.plugin.Backend().Handles())
			w.delete(newClaim("c"))
			require.NotNil(t, w.claim("c").DeletionTimestamp)
			sleepUntilIdle()
			assert.Empty(t, w.plugin.Backend().Handles())
			w.requireNoVolume(made)
		})
	})
	t.Run("also when the plugin refuses in between", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodProvision, fake.FailAfter(uncertain), fake.FailN(2, errors.New("no more today")))
			w.settle()
			w.delete(newClaim("c"))
			sleepUntilIdle()
			assert.Empty(t, w.plugin.Backend().Handles(), "that nothing was made this time says nothing of the time before")
			w.requireNoVolume(made)
		})
	})
	t.Run("is over when the plugin says that it cannot be", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			impossible := fmt.Errorf("larger than the pool: %w", volume.ErrInfeasible)
			w.plugin.Inject(fake.MethodProvision, fake.Fail(uncertain), fake.FailN(100, impossible))
			w.settle()
			w.delete(newClaim("c"))
			sleepUntilIdle()
			assert.False(t, w.has(newClaim("c")))
		})
	})
	t.Run("a panic is uncertain too", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodProvision, fake.PanicWith("oops"))
			c := w.settle()
			why, _ := c.Why(types.NamespacedName{Namespace: "default", Name: "c"})
			var panicked *volume.PanicError
			require.ErrorAs(t, why.Err, &panicked)
			sleepUntilIdle()
			w.requireBound("c", made)
		})
	})
}

// A controller that dies after any write while it provisions leaves what the next one finishes, with one piece of
// storage; and nothing at all when the claim was deleted meanwhile.
func TestProvisionSurvivesACrashAfterEachWrite(t *testing.T) {
	for writes := range 8 {
		for _, deleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("after write %d, claim deleted %v", writes, deleted), func(t *testing.T) {
				inWorld(t, provisioned, func(t *testing.T, w *world) {
					_, stop := w.start(&crashing{Store: w.store, left: writes}, Options{Workers: 1})
					idle()
					stop()
					if deleted {
						w.delete(newClaim("c"))
					}
					w.settle()
					sleepUntilIdle()
					if deleted {
						assert.Empty(t, w.plugin.Backend().Handles())
						w.requireNoVolume(made)
						return
					}
					w.requireBound("c", made)
					assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
				})
			})
		}
	}
}

// The name is taken by a volume that is not this claim's: nothing is bound and nothing is deleted.
func TestProvisionLeavesAForeignVolumeOfItsName(t *testing.T) {
	all := append(objectList{newVolume(made, refTo("other", "uid-other"))}, provisioned...)
	inWorld(t, all, func(t *testing.T, w *world) {
		w.settle()
		assert.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
		assert.Equal(t, types.UID("uid-other"), w.volume(made).Spec.ClaimRef.UID)
		assert.Zero(t, w.calls(fake.MethodDelete))
	})
}

// A call that ignores its context is abandoned: Run returns and names it, and no second call begins beside it.
func TestALostCall(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodProvision, fake.HangUninterruptible(release))
		c := w.startLost(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
		w.settle() // another controller is not hindered by what this one lost
		close(release)
		sleepUntilIdle()
		w.requireBound("c", made)
		assert.Empty(t, c.storage.Abandoned())
	})
}

// startLost runs a controller that must lose a call when it is stopped.
func (w *world) startLost(t *testing.T) *Controller {
	c := New(w.plugins, w.store, Options{CallTimeout: time.Second})
	ctx, cancel := contextWithCancel(t)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	time.Sleep(10 * time.Second)
	cancel()
	var lost *AbandonedCallsError
	select {
	case err := <-ended:
		require.ErrorAs(t, err, &lost)
	case <-time.After(time.Hour):
		t.Fatal("Run has not returned an hour after its context ended")
	}
	assert.Equal(t, []string{`Provision of volume "pvc-uid-c" by plugin "example.com/fake"`}, lost.Calls)
	return c
}
