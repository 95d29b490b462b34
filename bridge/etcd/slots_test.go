package etcd_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/store"
)

// held keeps transactions from etcd until they are let go, and counts them.
type held struct {
	mu       sync.Mutex
	waiting  int
	most     int
	reached  chan struct{} // closed when so many wait as are wanted
	wanted   int
	released chan struct{}
}

func (h *held) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if method == "/etcdserverpb.KV/Txn" {
		h.enter()
		defer h.leave()
		select {
		case <-h.released:
		case <-ctx.Done():
		}
	}
	return invoke(ctx, method, req, reply, cc, options...)
}

func (h *held) enter() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting++
	h.most = max(h.most, h.waiting)
	if h.waiting == h.wanted {
		close(h.reached)
		h.wanted = 0
	}
}

func (h *held) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
}

// TestCallsAreBoundedAndLeasesPassThem has many writes come at once while etcd answers none: so many calls are made as the store
// may make, and a lease is renewed and another taken beside them. When etcd answers again, all are done.
func TestCallsAreBoundedAndLeasesPassThem(t *testing.T) {
	const calls, writes = 4, 100
	c := newCluster(t)
	h := &held{wanted: calls, reached: make(chan struct{}), released: make(chan struct{})}
	s, err := etcd.New(c.dial([]grpc.DialOption{grpc.WithUnaryInterceptor(h.intercept)}), etcd.Options{Prefix: "/bounded", MaxCalls: calls})
	require.NoError(t, err)
	lessor := c.store(c.clientOf(), "/bounded")
	request := store.LeaseRequest{Name: types.NamespacedName{Namespace: "default", Name: "lead"}, Holder: "first", TTL: time.Minute}
	lease, err := lessor.AcquireLease(t.Context(), request)
	require.NoError(t, err)

	var writing sync.WaitGroup
	for i := range writes {
		writing.Go(func() {
			_, err := s.Create(t.Context(), newVolume(fmt.Sprintf("disk-%d", i)))
			assert.NoError(t, err)
		})
	}
	<-h.reached
	_, err = s.RenewLease(t.Context(), lease)
	require.NoError(t, err, "no slot is free")
	require.NoError(t, s.ReleaseLease(t.Context(), lease))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.List(gone, store.PersistentVolumes, "")
	require.ErrorIs(t, err, context.Canceled)
	close(h.released)
	writing.Wait()
	assert.LessOrEqual(t, h.most, calls)
}

// TestACreationIsOneCall: what creates is tried without reading first, and one that finds the object there says so and leaves it.
func TestACreationIsOneCall(t *testing.T) {
	c := newCluster(t)
	delay := &slow{}
	s := c.store(c.dial([]grpc.DialOption{grpc.WithUnaryInterceptor(delay.intercept)}), "/creations")
	_, err := s.Create(t.Context(), newVolume("disk"))
	require.NoError(t, err)
	assert.Equal(t, int64(1), delay.calls.Load())
	_, err = s.Create(t.Context(), newVolume("disk"))
	require.ErrorIs(t, err, store.ErrAlreadyExists)

	request := store.LeaseRequest{Name: types.NamespacedName{Namespace: "default", Name: "lead"}, Holder: "first", TTL: time.Minute}
	lease, err := s.AcquireLease(t.Context(), request)
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), store.Transaction{Leases: []store.Lease{lease}, Writes: []store.Write{store.ToCreate(newVolume("held"))}})
	require.NoError(t, err)
	require.NoError(t, s.ReleaseLease(t.Context(), lease))
	_, err = s.Commit(t.Context(), store.Transaction{Leases: []store.Lease{lease}, Writes: []store.Write{store.ToCreate(newVolume("late"))}})
	require.ErrorIs(t, err, store.ErrLeaseLost)
}

// TestAnUpdateOfWhatIsKnownIsOneCall: what this store has read or written itself is not read again before it is updated. An update that
// another store was before writes nothing, also where what this one knows is old.
func TestAnUpdateOfWhatIsKnownIsOneCall(t *testing.T) {
	c := newCluster(t)
	delay := &slow{}
	s := c.store(c.dial([]grpc.DialOption{grpc.WithUnaryInterceptor(delay.intercept)}), "/updates")
	other := c.store(c.clientOf(), "/updates")
	calls := func(f func()) int64 {
		before := delay.calls.Load()
		f()
		return delay.calls.Load() - before
	}
	disk, err := store.Create(t.Context(), s, newVolume("disk"))
	require.NoError(t, err)
	made := disk.DeepCopy()
	assert.Equal(t, int64(1), calls(func() {
		disk.Finalizers = []string{"test/keep"}
		disk.CreationTimestamp = metav1.Time{}
		disk, err = store.Update(t.Context(), s, disk)
		require.NoError(t, err)
	}))
	assert.Equal(t, made.CreationTimestamp, disk.CreationTimestamp, "no update can change that")
	assert.Equal(t, made.UID, disk.UID)
	_, err = store.Update(t.Context(), s, made)
	require.ErrorIs(t, err, store.ErrConflict)

	require.NoError(t, store.Delete(t.Context(), other, disk))
	_, err = store.Update(t.Context(), s, disk)
	require.ErrorIs(t, err, store.ErrConflict)
	dying, err := store.Get[*v1.PersistentVolume](t.Context(), s, "", "disk")
	require.NoError(t, err)
	assert.Equal(t, int64(1), calls(func() {
		revived := dying.DeepCopy()
		revived.DeletionTimestamp = nil
		dying, err = store.Update(t.Context(), s, revived)
		require.NoError(t, err)
	}))
	assert.NotNil(t, dying.DeletionTimestamp)
	assert.Equal(t, int64(1), calls(func() {
		dying.Finalizers = nil
		_, err = store.Update(t.Context(), s, dying)
		require.NoError(t, err)
	}))
	_, err = store.Update(t.Context(), s, dying)
	require.ErrorIs(t, err, store.ErrNotFound)
}

// TestAConditionOnAVersionIsOneCall: etcd itself compares what must be at a version.
func TestAConditionOnAVersionIsOneCall(t *testing.T) {
	c := newCluster(t)
	delay := &slow{}
	s := c.store(c.dial([]grpc.DialOption{grpc.WithUnaryInterceptor(delay.intercept)}), "/conditions")
	disk, err := store.Create(t.Context(), c.store(c.clientOf(), "/conditions"), newVolume("disk"))
	require.NoError(t, err)
	createWhile := func(name, version string) error {
		_, err := s.Commit(t.Context(), store.Transaction{
			Conditions: []store.ObjectCondition{{
				Key: store.Key{Kind: store.PersistentVolumes, Name: "disk"}, Preconditions: store.Preconditions{ResourceVersion: version},
			}},
			Writes: []store.Write{store.ToCreate(newVolume(name))},
		})
		return err
	}
	require.NoError(t, createWhile("first", disk.ResourceVersion))
	assert.Equal(t, int64(1), delay.calls.Load())
	old := disk.ResourceVersion
	disk.Labels = map[string]string{"a": "b"}
	_, err = store.Update(t.Context(), s, disk)
	require.NoError(t, err)
	for _, version := range []string{old, "0", "1", "no number"} {
		require.ErrorIs(t, createWhile("second", version), store.ErrConflict, version)
	}
	require.NoError(t, store.Delete(t.Context(), s, disk))
	require.ErrorIs(t, createWhile("second", "0"), store.ErrConflict)
	_, err = store.Get[*v1.PersistentVolume](t.Context(), s, "", "second")
	require.ErrorIs(t, err, store.ErrNotFound)
}
