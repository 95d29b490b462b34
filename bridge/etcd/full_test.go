package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/store"
)

// ballast is a ConfigMap of half a MiB.
func ballast(name string, finalizers ...string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: finalizers},
		Data:       map[string]string{"a": strings.Repeat("a", 1<<19)},
	}
}

// full is an etcd that is full of objects that are all there.
type full struct {
	*testing.T
	client  *clientv3.Client
	store   *etcd.Store
	objects []*v1.ConfigMap
	volume  store.Key     // of another kind
	kept    *v1.ConfigMap // it has a finalizer
	dying   *v1.ConfigMap // it is being deleted, and has a finalizer
}

const (
	finalizer = "example.com/keep"
	quota     = 16 << 20 // bytes
)

func newFull(t *testing.T) *full {
	t.Helper()
	c := newClusterOf(t, quota)
	client := c.clientOf()
	f := &full{T: t, client: client, store: c.store(client, "/full")}
	f.kept, f.dying = f.create(ballast("kept", finalizer)), f.create(ballast("dying", finalizer))
	require.NoError(t, store.Delete(t.Context(), f.store, f.dying))
	_, err := store.Create(t.Context(), f.store, newVolume("volume"))
	require.NoError(t, err)
	f.volume = store.Key{Kind: store.PersistentVolumes, Name: "volume"}
	f.dying, err = store.Get[*v1.ConfigMap](t.Context(), f.store, "default", "dying")
	require.NoError(t, err)
	return f
}

func (f *full) create(obj *v1.ConfigMap) *v1.ConfigMap {
	f.Helper()
	created, err := store.Create(f.Context(), f.store, obj)
	require.NoError(f, err)
	return created
}

// fill creates objects until there is no room, for the smallest one either.
func (f *full) fill() {
	f.Helper()
	for {
		obj, err := store.Create(f.Context(), f.store, ballast(fmt.Sprintf("data-%d", len(f.objects))))
		if errors.Is(err, store.ErrFull) {
			break
		}
		require.NoError(f, err)
		f.objects = append(f.objects, obj)
	}
	require.Greater(f, len(f.objects), 6)
	list, _, err := store.ListOf[*v1.ConfigMap](f.Context(), f.store, "")
	require.NoError(f, err)
	require.Len(f, list, len(f.objects)+2, "what was refused has not happened")
	_, err = f.store.Create(f.Context(), newVolume("small"))
	require.ErrorIs(f, err, store.ErrFull)
}

// fits is how many objects of half a MiB fit into the quota, with room for more.
const fits = 20

// makeRoom does what the error of a full etcd says but for the alarm. It first deletes the objects that do not fit: a fast client
// writes more than the quota, because a member learns its size when it commits. Each member compacts in its own time, and one that has
// not yet keeps its size when it is defragmented: it is defragmented again until it has shrunk.
func (f *full) makeRoom() {
	f.Helper()
	for _, obj := range f.objects[min(fits, len(f.objects)):] {
		require.NoError(f, store.Delete(f.Context(), f.store, obj))
	}
	now, err := f.client.Get(f.Context(), "x")
	require.NoError(f, err)
	_, err = f.client.Compact(f.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(f, err)
	for _, member := range f.client.Endpoints() {
		require.EventuallyWithT(f, func(c *assert.CollectT) {
			_, err := f.client.Defragment(f.Context(), member)
			require.NoError(c, err)
			status, err := f.client.Status(f.Context(), member)
			require.NoError(c, err)
			assert.Less(c, status.DbSize, int64(quota-len(f.kept.Data["a"])), "the size of %s", member)
		}, time.Minute, 10*time.Millisecond)
	}
}

// disarm takes the alarm back. A member that found itself full before it was defragmented may raise it once more.
func (f *full) disarm(t require.TestingT) {
	_, err := f.client.AlarmDisarm(f.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
}

// requireDeleted reads the deletion of an object from a watch, and returns its version.
func requireDeleted(t *testing.T, events <-chan store.Event, name string) string {
	t.Helper()
	event, open := <-events
	require.True(t, open)
	obj, ok := event.Object.(*v1.ConfigMap)
	require.True(t, ok)
	require.Equal(t, "Deleted "+name, string(event.Type)+" "+obj.Name)
	require.Len(t, obj.Data["a"], 1<<19, "as it was last")
	return obj.ResourceVersion
}

// TestAFullEtcdStillDeletes fills a real etcd with objects that are all live. Deletions go on and are told to watches; whatever else
// is refused says how room is made, and that is done at the end.
func TestAFullEtcdStillDeletes(t *testing.T) {
	f := newFull(t)
	f.fill()
	ctx := t.Context()
	list, err := f.store.List(ctx, store.ConfigMaps, "")
	require.NoError(t, err)
	events, err := f.store.Watch(ctx, store.ConfigMaps, "", list.ResourceVersion)
	require.NoError(t, err)

	require.NoError(t, store.Delete(ctx, f.store, f.objects[0]))
	first := requireDeleted(t, events, "data-0")
	require.ErrorIs(t, store.Delete(ctx, f.store, f.objects[0]), store.ErrNotFound)
	deleted, err := f.store.Commit(ctx, store.Transaction{Writes: []store.Write{deletion(f.objects[1]), deletion(f.objects[2])}})
	require.NoError(t, err)
	versions := []string{requireDeleted(t, events, "data-1"), requireDeleted(t, events, "data-2")}
	for i, version := range versions {
		require.Equal(t, version, deleted[i].(store.Object).GetResourceVersion())
	}
	f.dying.Finalizers = nil
	_, err = store.Update(ctx, f.store, f.dying)
	require.NoError(t, err, "the last finalizer is taken off")
	requireDeleted(t, events, "dying")

	// A watch goes on between two deletions of one transaction, and from before them.
	for from, names := range map[string][]string{first: {"data-1", "data-2", "dying"}, versions[0]: {"data-2", "dying"}, versions[1]: {"dying"}} {
		resumed, err := f.store.Watch(ctx, store.ConfigMaps, "", from)
		require.NoError(t, err)
		for _, name := range names {
			requireDeleted(t, resumed, name)
		}
	}

	key := store.Key{Kind: store.ConfigMaps, Namespace: "default", Name: "data-3"}
	require.ErrorIs(t, f.store.Delete(ctx, key, store.Preconditions{ResourceVersion: first}), store.ErrConflict)
	for what, err := range map[string]error{
		"an object with a finalizer": store.Delete(ctx, f.store, f.kept),
		"a deletion with a creation": f.commit(deletion(f.objects[3]), store.ToCreate(newVolume("small"))),
		"objects of several kinds":   f.commit(deletion(f.objects[3]), store.ToDelete(f.volume, store.Preconditions{})),
	} {
		require.ErrorIs(t, err, store.ErrFull, what)
		require.ErrorContains(t, err, "disarm the alarm", what)
	}
	_, err = store.Get[*v1.ConfigMap](ctx, f.store, "default", "data-3")
	require.NoError(t, err, "what was refused has not happened")

	f.makeRoom()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		f.disarm(c)
		createdAgain, err := store.Create(ctx, f.store, ballast("data-0"))
		require.NoError(c, err)
		assert.NotEqual(c, f.objects[0].UID, createdAgain.UID)
	}, time.Minute, 10*time.Millisecond)
}

func (f *full) commit(writes ...store.Write) error {
	_, err := f.store.Commit(f.Context(), store.Transaction{Writes: writes})
	return err
}

func deletion(obj *v1.ConfigMap) store.Write {
	return store.ToDelete(store.Key{Kind: store.ConfigMaps, Namespace: obj.Namespace, Name: obj.Name}, store.Preconditions{UID: obj.UID})
}

// TestLeasesOfAFullEtcd: one that is held is renewed and released; who waits for one is told why it cannot be had, and gets it when
// there is room.
func TestLeasesOfAFullEtcd(t *testing.T) {
	f := newFull(t)
	ctx := t.Context()
	request := store.LeaseRequest{Name: types.NamespacedName{Namespace: "default", Name: "lead"}, Holder: "first", TTL: 30 * time.Second}
	held, err := f.store.AcquireLease(ctx, request)
	require.NoError(t, err)
	f.fill()
	held, err = f.store.RenewLease(ctx, held)
	require.NoError(t, err)
	require.NoError(t, f.store.ReleaseLease(ctx, held))

	request.Holder = "second"
	waiting, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = f.store.AcquireLease(waiting, request)
	require.ErrorIs(t, err, store.ErrFull)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "disarm the alarm")

	acquired := make(chan error, 1)
	go func() {
		_, err := f.store.AcquireLease(ctx, request)
		acquired <- err
	}()
	for _, obj := range f.objects[:4] {
		require.NoError(t, store.Delete(ctx, f.store, obj))
	}
	f.makeRoom()
	for {
		select {
		case err := <-acquired:
			require.NoError(t, err)
			return
		default:
			f.disarm(t)
			pause(ctx, 50*time.Millisecond)
		}
	}
}
