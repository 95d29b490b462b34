package volumemanager

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

const (
	// readTimeout bounds the reads of the store for one pod, so that it does not hold up others for long.
	readTimeout = 10 * time.Second
)

// claimIndex knows which pods wait for which objects of the store.
type claimIndex struct {
	mu   sync.Mutex
	pods map[store.Key]sets.Set[types.UID]
	keys map[types.UID]sets.Set[store.Key]
}

func newClaimIndex() *claimIndex {
	return &claimIndex{pods: make(map[store.Key]sets.Set[types.UID]), keys: make(map[types.UID]sets.Set[store.Key])}
}

// add enters that a pod waits for an object. It is called before the object is read, so that no change is missed.
func (x *claimIndex) add(uid types.UID, key store.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pods[key] == nil {
		x.pods[key] = sets.New[types.UID]()
	}
	if x.keys[uid] == nil {
		x.keys[uid] = sets.New[store.Key]()
	}
	x.pods[key].Insert(uid)
	x.keys[uid].Insert(key)
}

// drop enters that a pod waits for nothing any more.
func (x *claimIndex) drop(uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key := range x.keys[uid] {
		x.pods[key].Delete(uid)
		if x.pods[key].Len() == 0 {
			delete(x.pods, key)
		}
	}
	delete(x.keys, uid)
}

// waitingFor returns the pods that wait for an object.
func (x *claimIndex) waitingFor(key store.Key) []types.UID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.pods[key].UnsortedList()
}

// waitingForKind returns the pods that wait for any object of a kind.
func (x *claimIndex) waitingForKind(kind schema.GroupVersionKind) []types.UID {
	x.mu.Lock()
	defer x.mu.Unlock()
	pods := sets.New[types.UID]()
	for key, uids := range x.pods {
		if key.Kind == kind {
			pods = pods.Union(uids)
		}
	}
	return pods.UnsortedList()
}

// feed is told what becomes of the objects of one kind.
type feed interface {
	// listed is told of all objects at the beginning, and when a watch was begun again.
	listed(objects []runtime.Object)
	// changed is told of each change after that.
	changed(event store.Event)
}

// claimFeed wakes the pods that wait for an object, and the volumes that grow.
type claimFeed struct {
	m    *Manager
	kind schema.GroupVersionKind
}

func (m *Manager) claimFeed(kind schema.GroupVersionKind) claimFeed {
	return claimFeed{m: m, kind: kind}
}

func (f claimFeed) listed(objects []runtime.Object) {
	f.m.dirtyPods.AddAll(f.m.claims.waitingForKind(f.kind))
	for _, obj := range objects {
		f.m.growth.changed(obj)
	}
}

func (f claimFeed) changed(event store.Event) {
	if key, err := store.KeyOf(event.Object); err == nil {
		f.m.dirtyPods.AddAll(f.m.claims.waitingFor(key))
	}
	f.m.growth.changed(event.Object)
}

// watchKind tells to of the objects of a kind until ctx ends. A watch that cannot be had, or that ends, is begun again
// after a pause.
func (m *Manager) watchKind(ctx context.Context, kind schema.GroupVersionKind, to feed) {
	for failures := 0; ctx.Err() == nil; {
		received, err := m.followKind(ctx, kind, to)
		if received > 0 {
			failures = 0
		}
		failures++
		wait := retry.After(failures)
		if err != nil {
			m.options.Logger.Warn("watch of the store failed", "kind", kind.Kind, "error", err, "retryAfter", wait)
		}
		retry.Pause(ctx, wait)
	}
}

// followKind lists and watches a kind until the watch ends, and returns how many events came.
func (m *Manager) followKind(ctx context.Context, kind schema.GroupVersionKind, to feed) (received int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also when the watch is given up before ctx ends
	list, err := m.options.Store.List(ctx, kind, "")
	if err != nil {
		return 0, err
	}
	events, err := m.options.Store.Watch(ctx, kind, "", list.ResourceVersion)
	if err != nil {
		return 0, err
	}
	to.listed(list.Items)
	for event := range events {
		received++
		to.changed(event)
	}
	return received, nil
}
