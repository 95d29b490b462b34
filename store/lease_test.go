package store_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

func leader(holder string) store.LeaseRequest {
	return store.LeaseRequest{Name: types.NamespacedName{Namespace: "system", Name: "leader"}, Holder: holder, TTL: 10 * time.Second}
}

// cutOff is a store that can no longer be written to when it is told so.
type cutOff struct {
	store.Store
	err error
}

func (c *cutOff) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if c.err != nil {
		return nil, c.err
	}
	return c.Store.Update(ctx, obj)
}

func TestHoldLeaseKeepsItAndGivesItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		began, wrong := time.Now(), errors.New("wrong")
		ended := make(chan error)
		go func() {
			ended <- store.HoldLease(t.Context(), store.LessorOf(s), leader("first"), func(ctx context.Context, lease store.Lease) error {
				time.Sleep(time.Minute)
				return errors.Join(ctx.Err(), wrong)
			})
		}()
		synctest.Wait()
		second, err := store.LessorOf(s).AcquireLease(t.Context(), leader("second"))
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(began), "it was renewed for a minute, and free at once")
		assert.EqualValues(t, 2, second.Token)
		err = <-ended
		require.ErrorIs(t, err, wrong)
		require.NotErrorIs(t, err, store.ErrLeaseLost)
		require.NotErrorIs(t, err, context.Canceled)
	})
}

// A holder that cannot renew its lease has stopped before another takes it.
func TestHoldLeaseEndsBeforeAnotherHoldsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		first := &cutOff{Store: s}
		var stopped time.Time
		ended := make(chan error)
		go func() {
			ended <- store.HoldLease(t.Context(), store.LessorOf(first), leader("first"), func(ctx context.Context, _ store.Lease) error {
				first.err = errors.New("the network is gone")
				<-ctx.Done()
				stopped = time.Now()
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		_, err := store.LessorOf(s).AcquireLease(t.Context(), leader("second"))
		require.NoError(t, err)
		taken := time.Now()
		require.ErrorIs(t, <-ended, store.ErrLeaseLost)
		assert.Less(t, stopped, taken)
	})
}

func TestHoldLeaseEndsAtOnceWhenAnotherHasTakenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		err := store.HoldLease(t.Context(), store.LessorOf(s), leader("twice"), func(ctx context.Context, _ store.Lease) error {
			_, err := store.LessorOf(s).AcquireLease(t.Context(), leader("twice"))
			began := time.Now()
			<-ctx.Done()
			assert.Less(t, time.Since(began), 5*time.Second)
			return err
		})
		require.ErrorIs(t, err, store.ErrLeaseLost)
		lease, err := store.Get[*coordinationv1.Lease](t.Context(), s, "system", "leader")
		require.NoError(t, err)
		assert.Equal(t, "twice", *lease.Spec.HolderIdentity, "it is not released for the other")
	})
}

// A clock that is wrong by a year changes nothing: times in the object are compared with nothing.
func TestLeaseObjectsTrustNoTimeThatTheyRead(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"slow": -365 * 24 * time.Hour, "fast": 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store.NewMemory(store.MemoryOptions{})
				_, err := store.LessorOf(s).AcquireLease(t.Context(), leader("first"))
				require.NoError(t, err)
				lease, err := store.Get[*coordinationv1.Lease](t.Context(), s, "system", "leader")
				require.NoError(t, err)
				lease.Spec.RenewTime.Time = lease.Spec.RenewTime.Add(wrong)
				_, err = store.Update(t.Context(), s, lease)
				require.NoError(t, err)
				began := time.Now()
				_, err = store.LessorOf(s).AcquireLease(t.Context(), leader("second"))
				require.NoError(t, err)
				assert.Equal(t, 11*time.Second, time.Since(began))
			})
		})
	}
}

// Who waits has seen the lease unchanged for its whole life, also when the watch was cut meanwhile and the lease renewed.
func TestLeaseObjectsWaitFromTheLastChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &breaker{Store: store.NewMemory(store.MemoryOptions{})}
		first, err := store.LessorOf(s).AcquireLease(t.Context(), leader("first"))
		require.NoError(t, err)
		took := make(chan time.Time, 1)
		go func() {
			_, err := store.LessorOf(s).AcquireLease(t.Context(), leader("second"))
			assert.NoError(t, err)
			took <- time.Now()
		}()
		time.Sleep(5 * time.Second)
		_, err = store.LessorOf(s).RenewLease(t.Context(), first)
		require.NoError(t, err)
		renewed := time.Now()
		time.Sleep(5 * time.Second)
		s.cut()
		synctest.Wait()
		time.Sleep(5 * time.Second)
		require.Empty(t, took, "it was renewed ten seconds ago")
		assert.Equal(t, 11*time.Second, (<-took).Sub(renewed), "the cut of the watch does not begin the wait again")
	})
}

func TestLeaseObjectsWaitThroughFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &breaker{Store: store.NewMemory(store.MemoryOptions{}), fails: 5}
		lease, err := store.LessorOf(s).AcquireLease(t.Context(), leader("first"))
		require.NoError(t, err)
		assert.Zero(t, s.fails)
		assert.EqualValues(t, 1, lease.Token)
	})
}

// TestALeaseEndsWithItsObject: where the object of a lease was deleted, tokens begin again, and who held it before writes nothing.
func TestALeaseEndsWithItsObject(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	lessor := store.LessorOf(s)
	late, err := lessor.AcquireLease(t.Context(), leader("a"))
	require.NoError(t, err)
	require.NoError(t, s.Delete(t.Context(), store.Key{Kind: store.Leases, Namespace: late.Name.Namespace, Name: late.Name.Name}, store.Preconditions{}))
	now, err := lessor.AcquireLease(t.Context(), leader("a"))
	require.NoError(t, err)
	require.Equal(t, late.Token, now.Token, "it cannot know better")
	commit := func(lease store.Lease, name string) error {
		_, err := s.Commit(t.Context(), store.Transaction{
			Leases: []store.Lease{lease}, Writes: []store.Write{store.ToCreate(&v1.PersistentVolume{ObjectMeta: objectMeta("", name, "")})},
		})
		return err
	}
	require.ErrorIs(t, commit(late, "late"), store.ErrLeaseLost)
	_, err = lessor.RenewLease(t.Context(), late)
	require.ErrorIs(t, err, store.ErrLeaseLost)
	require.NoError(t, lessor.ReleaseLease(t.Context(), late), "which leaves the other")
	require.NoError(t, commit(now, "now"))
}
