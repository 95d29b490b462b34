package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// The rows of the decision table for a volume.
func TestVolume(t *testing.T) {
	provisionedBy := volumeAnnotation(objects.AnnDynamicallyProvisioned, fake.DefaultPluginName)
	elsewhere := newClaim("c", completed, names("b"))
	other := newVolume("b", refTo("c", "uid-c"))
	tests := map[string]struct {
		objects objectList
		phase   v1.PersistentVolumePhase // empty: the volume is gone
		ref     string                   // the claim and UID that it names afterwards
		reason  string
	}{
		"1 names no claim":               {objectList{newVolume("a", func(pv *v1.PersistentVolume) { pv.Status.Phase = "" })}, v1.VolumeAvailable, "", ""},
		"2 reserved without UID":         {objectList{newVolume("a", refTo("c", ""))}, v1.VolumeAvailable, "c/", ""},
		"3 its claim is gone, Retain":    {objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimRetain))}, v1.VolumeReleased, "c/uid-c", ""},
		"4 its claim is gone, no policy": {objectList{newVolume("a", refTo("c", "uid-c"))}, v1.VolumeReleased, "c/uid-c", ""},
		"5 its claim is gone, Delete":    {objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete))}, "", "", ""},
		"6 its claim is gone, Recycle":   {objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimRecycle))}, v1.VolumeAvailable, "c/", objects.ReasonVolumeRecycled},
		"18 its claim is gone, Recycle, chosen": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimRecycle), volumeAnnotation(objects.AnnBoundByController, objects.Yes))},
			v1.VolumeAvailable, "", objects.ReasonVolumeRecycled,
		},
		"19 nothing here can recycle it": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimRecycle), nfs)}, v1.VolumeFailed, "c/uid-c", objects.ReasonVolumeFailedRecycle,
		},
		"20 migrated, Delete": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete), volumeAnnotation(objects.AnnMigratedTo, "x.example.com"))},
			v1.VolumeReleased, "c/uid-c", "",
		},
		"21 its claim is unbound, of another mode": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete)), newClaim("c", func(c *v1.PersistentVolumeClaim) {
				c.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock)
			})}, v1.VolumeAvailable, "c/uid-c", ReasonVolumeMismatch,
		},
		"22 its claim is unbound":        {objectList{newVolume("a", refTo("c", "uid-c")), newClaim("c")}, v1.VolumeBound, "c/uid-c", ""},
		"7 its claim is gone, unknown":   {objectList{newVolume("a", refTo("c", "uid-c"), policy("Burn"))}, v1.VolumeFailed, "c/uid-c", objects.ReasonVolumeUnknownReclaimPolicy},
		"8 claim of another UID, Delete": {objectList{newVolume("a", refTo("c", "older"), policy(v1.PersistentVolumeReclaimDelete)), newClaim("c", ofClass("none"))}, "", "", ReasonProvisioningFailed},
		"9 its claim is bound to it":     {objectList{newVolume("a", refTo("c", "uid-c")), newClaim("c", completed, names("a"))}, v1.VolumeBound, "c/uid-c", ""},
		"10 its claim has another, made for it": {
			objectList{newVolume("a", refTo("c", "uid-c"), provisionedBy, policy(v1.PersistentVolumeReclaimDelete)), elsewhere, other}, "", "", "",
		},
		"11 its claim has another, chosen": {
			objectList{newVolume("a", refTo("c", "uid-c"), volumeAnnotation(objects.AnnBoundByController, objects.Yes)), elsewhere, other}, v1.VolumeAvailable, "", "",
		},
		"12 its claim has another, by a user": {objectList{newVolume("a", refTo("c", "uid-c")), elsewhere, other}, v1.VolumeAvailable, "c/", ""},
		"13 of a provisioner that is not here": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete), outsider)}, v1.VolumeReleased, "c/uid-c", "",
		},
		"14 of a driver that is not here, made by hand": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete), outsider, byHand)}, v1.VolumeReleased, "c/uid-c", "",
		},
		"15 Failed stays so": {
			objectList{newVolume("a", refTo("c", "uid-c"), func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeFailed })}, v1.VolumeFailed, "c/uid-c", "",
		},
		"16 of a provisioner that is not here, of a kind that is": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete), madeBy("example.com/other"))}, v1.VolumeReleased, "c/uid-c", "",
		},
		"17 of a kind that no plugin here knows": {
			objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete), nfs)}, v1.VolumeFailed, "c/uid-c", objects.ReasonVolumeFailedDelete,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.objects, func(t *testing.T, w *world) {
				w.settle()
				sleepUntilIdle()
				if tt.reason != "" {
					assert.Equal(t, []string{tt.reason}, slices.Compact(w.reasons()))
				} else {
					assert.Empty(t, w.reasons())
				}
				if tt.phase == "" {
					w.requireNoVolume("a")
					assert.Equal(t, 1, w.calls(fake.MethodDelete))
					return
				}
				assert.Zero(t, w.calls(fake.MethodDelete))
				pv := w.volume("a")
				assert.Equal(t, tt.phase, pv.Status.Phase)
				ref := ""
				if pv.Spec.ClaimRef != nil {
					ref = fmt.Sprintf("%s/%s", pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID)
				}
				assert.Equal(t, tt.ref, ref)
			})
		})
	}
}

// outsider makes a volume one of a driver and a provisioner that are not here.
func outsider(pv *v1.PersistentVolume) {
	pv.Spec.CSI.Driver = "other.example.com"
	volumeAnnotation(objects.AnnDynamicallyProvisioned, "example.com/other")(pv)
}

func byHand(pv *v1.PersistentVolume) { delete(pv.Annotations, objects.AnnDynamicallyProvisioned) }

func madeBy(provisioner string) func(*v1.PersistentVolume) {
	return volumeAnnotation(objects.AnnDynamicallyProvisioned, provisioner)
}

func nfs(pv *v1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/"}}
}

func TestDeleteWithTheClaim(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.delete(newClaim("c"))
		w.requireNoVolume(made)
		assert.Empty(t, w.plugin.Backend().Handles())
	})
}

func TestRetainKeepsTheStorage(t *testing.T) {
	class := newClass("x", func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr(v1.PersistentVolumeReclaimRetain) })
	inWorld(t, objectList{newClaim("c", ofClass("x")), class}, func(t *testing.T, w *world) {
		w.settle()
		w.delete(newClaim("c"))
		assert.Equal(t, v1.VolumeReleased, w.volume(made).Status.Phase)
		assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
	})
}

// A volume that is in use is left whole, and deleted when it is not any more.
func TestDeleteWaitsWhileInUse(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.plugin.Inject(fake.MethodDelete, fake.FailN(3, fmt.Errorf("attached: %w", volume.ErrInUse)))
		w.delete(newClaim("c"))
		assert.Equal(t, v1.VolumeReleased, w.volume(made).Status.Phase)
		assert.Contains(t, w.reasons(), objects.ReasonVolumeDelete)
		assert.Equal(t, 1, w.calls(fake.MethodDelete), "no second try before the back-off is over")
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 2, w.calls(fake.MethodDelete))
		sleepUntilIdle()
		w.requireNoVolume(made)
	})
}

func TestDeleteThatFailsIsTriedAgain(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.plugin.Inject(fake.MethodDelete, fake.FailN(2, errors.New("disk on fire")))
		w.delete(newClaim("c"))
		assert.Equal(t, v1.VolumeFailed, w.volume(made).Status.Phase)
		assert.Contains(t, w.volume(made).Status.Message, "disk on fire")
		assert.Equal(t, 1, w.calls(fake.MethodDelete))
		sleepUntilIdle()
		w.requireNoVolume(made)
	})
}

// Deleting the object of a volume by hand does not forget the storage behind it.
func TestADeletedObjectWaitsForItsStorage(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.delete(newVolume(made))
		require.NotNil(t, w.volume(made).DeletionTimestamp)
		assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
		w.delete(newClaim("c"))
		w.requireNoVolume(made)
		assert.Empty(t, w.plugin.Backend().Handles())
	})
}

// What memory says is not enough to destroy: the claim is in the store, though the controller has not heard of it.
func TestNothingIsDeletedOnStaleKnowledge(t *testing.T) {
	all := objectList{
		newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete)), newClaim("c", completed, names("a")),
	}
	inWorld(t, all, func(t *testing.T, w *world) {
		w.start(blindToClaims{w.store}, Options{})
		idle()
		assert.Zero(t, w.calls(fake.MethodDelete))
		assert.Equal(t, v1.VolumeBound, w.volume("a").Status.Phase)
	})
}

// blindToClaims lists no claim.
type blindToClaims struct{ store.Store }

func (s blindToClaims) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	list, err := s.Store.List(ctx, kind, namespace)
	if kind == store.PersistentVolumeClaims {
		list.Items = nil
	}
	return list, err
}

func TestDeleteSurvivesACrashAfterEachWrite(t *testing.T) {
	for writes := range 4 {
		t.Run(fmt.Sprintf("after write %d", writes), func(t *testing.T) {
			inWorld(t, provisioned, func(t *testing.T, w *world) {
				_, stop := w.start(w.store, Options{})
				idle()
				w.requireBound("c", made)
				stop()
				w.delete(newClaim("c"))
				_, stop = w.start(&crashing{Store: w.store, left: writes}, Options{Workers: 1})
				idle()
				stop()
				w.settle()
				sleepUntilIdle()
				w.requireNoVolume(made)
				assert.Empty(t, w.plugin.Backend().Handles())
			})
		})
	}
}

// A watch that ends, or a history that is too short, costs a new list and nothing else.
func TestTheControllerListsAgain(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.store = store.NewMemory(store.MemoryOptions{History: 2})
		c := w.settle()
		w.create(newClass("x"))
		for i := range 40 {
			w.create(newClaim(fmt.Sprintf("c-%d", i), ofClass("x")))
		}
		sleepUntilIdle()
		for i := range 40 {
			w.requireBound(fmt.Sprintf("c-%d", i), fmt.Sprintf("pvc-uid-c-%d", i))
		}
		assert.Empty(t, c.Pending())
	})
}

func TestRunNeedsWhatItWorksOn(t *testing.T) {
	require.ErrorIs(t, New(nil, nil, Options{}).Run(t.Context()), volume.ErrInvalid)
}

func TestRunRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
		require.NoError(t, err)
		c := New(volume.NewVolumePluginMgr(host), store.NewMemory(store.MemoryOptions{}), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ended := make(chan error, 2)
		for range 2 {
			go func() { ended <- c.Run(ctx) }()
		}
		require.Error(t, <-ended, "one of the two runs, the other returns at once")
		require.NoError(t, ctx.Err())
		cancel()
		require.NoError(t, <-ended)
		require.Error(t, c.Run(t.Context()))
	})
}

// hasty is a store whose watches end at once.
type hasty struct {
	store.Store

	lists atomic.Int64
}

func (s *hasty) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if s.lists.Add(1) > 10000 {
		<-ctx.Done() // So that a controller that never pauses lets time pass.
	}
	return s.Store.List(ctx, kind, namespace)
}

func (s *hasty) Watch(context.Context, schema.GroupVersionKind, string, string) (<-chan store.Event, error) {
	ended := make(chan store.Event)
	close(ended)
	return ended, nil
}

// A store that ends every watch at once is not asked without pause, and is served all the same.
func TestWatchesThatEndAtOnceAreNotFollowedInAHurry(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		s := &hasty{Store: w.store}
		w.start(s, Options{})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Less(t, s.lists.Load(), int64(100))
		w.requireBound("c", made)
	})
}
