package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

// ghost lists a claim that is not in the store any more.
type ghost struct {
	store.Store

	claim *v1.PersistentVolumeClaim
}

func (s ghost) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	list, err := s.Store.List(ctx, kind, namespace)
	if kind == store.PersistentVolumeClaims {
		list.Items = append(list.Items, s.claim.DeepCopy())
	}
	return list, err
}

func TestNoVolumeIsGivenToAClaimThatIsGone(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a")}, func(t *testing.T, w *world) {
		claim := w.claim("c")
		w.delete(claim)
		w.start(ghost{w.store, claim}, Options{})
		idle()
		assert.Nil(t, w.volume("a").Spec.ClaimRef)
	})
}

// hooked calls after once, with the number of each update that succeeded, and create in place of the creation of volumes.
type hooked struct {
	store.Store

	mu     sync.Mutex
	writes int
	after  func(writes int)
	create func(n int) error
	made   int
}

func (s *hooked) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	updated, err := s.Store.Update(ctx, obj)
	if err != nil || s.after == nil {
		return updated, err
	}
	s.mu.Lock()
	s.writes++
	n := s.writes
	s.mu.Unlock()
	s.after(n)
	return updated, nil
}

func (s *hooked) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if s.create != nil {
		s.mu.Lock()
		s.made++
		n := s.made
		s.mu.Unlock()
		if err := s.create(n); err != nil {
			return nil, err
		}
	}
	return s.Store.Create(ctx, obj)
}

// A claim that is deleted in the middle of its bind gives the volume back: it never had it.
func TestAVolumeIsGivenBackWhenTheClaimGoesWhileItIsBound(t *testing.T) {
	deletesIt := policy(v1.PersistentVolumeReclaimDelete)
	for name, pv := range map[string]*v1.PersistentVolume{
		"chosen by the controller": newVolume("a", kept, deletesIt),
		"reserved by a user":       newVolume("a", kept, deletesIt, refTo("c", "")),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{newClaim("c"), pv}, func(t *testing.T, w *world) {
				s := &hooked{Store: w.store}
				s.after = func(writes int) {
					if writes == 1 {
						key, err := store.KeyOf(newClaim("c"))
						require.NoError(t, err)
						require.NoError(t, w.store.Delete(t.Context(), key, store.Preconditions{}))
						time.Sleep(time.Second) // Another worker sees the volume, and no claim.
					}
				}
				w.start(s, Options{})
				idle()
				sleepUntilIdle()
				left := w.volume("a")
				if pv.Spec.ClaimRef != nil {
					assert.Equal(t, pv.Spec.ClaimRef.Name, left.Spec.ClaimRef.Name)
					assert.Empty(t, left.Spec.ClaimRef.UID)
					left.Spec.ClaimRef.APIVersion = ""
				}
				assert.Equal(t, pv.Spec.ClaimRef, left.Spec.ClaimRef)
				assert.Equal(t, v1.VolumeAvailable, left.Status.Phase)
				assert.Zero(t, w.calls(fake.MethodDelete))
			})
		})
	}
}

// Storage that the store refuses for good is deleted; nothing is left, and the claim says why.
func TestStorageThatCannotBeRecordedIsDeleted(t *testing.T) {
	refuse := func(int) error { return fmt.Errorf("no such volumes: %w", store.ErrInvalid) }
	t.Run("and nothing is left", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			w.start(&hooked{Store: w.store, create: refuse}, Options{})
			idle()
			assert.Empty(t, w.plugin.Backend().Handles())
			assert.Equal(t, []string{ReasonProvisioningFailed}, w.reasons())
			assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		})
	})
	t.Run("and when that fails, it is not forgotten", func(t *testing.T) {
		inWorld(t, provisioned, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodDelete, fake.Fail(errors.New("disk on fire")))
			_, stop := w.start(&hooked{Store: w.store, create: refuse}, Options{})
			idle()
			assert.Contains(t, w.reasons(), objects.ReasonProvisioningCleanupFailed)
			assert.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
			stop()
			w.delete(newClaim("c"))
			w.settle()
			sleepUntilIdle()
			assert.Empty(t, w.plugin.Backend().Handles())
		})
	})
}

// A store that cannot take the volume now costs a second try, which finds the storage again.
func TestStorageIsRecordedLater(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		s := &hooked{Store: w.store, create: func(n int) error {
			if n < 4 {
				return errors.New("no leader")
			}
			return nil
		}}
		w.start(s, Options{})
		sleepUntilIdle()
		w.requireBound("c", made)
		assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
		assert.Zero(t, w.calls(fake.MethodDelete))
	})
}
