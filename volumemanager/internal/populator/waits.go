package populator

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/store"
)

const (
	// readTimeout bounds the reads of the store for one pod: one pod cannot delay the others for long.
	readTimeout = 10 * time.Second
)

// waits knows which pods wait for which objects of the store, and for which volumes.
type waits struct {
	mu   sync.Mutex
	pods map[store.Key]sets.Set[types.UID]
	keys map[types.UID]sets.Set[store.Key]
}

func newWaits() *waits {
	return &waits{pods: make(map[store.Key]sets.Set[types.UID]), keys: make(map[types.UID]sets.Set[store.Key])}
}

// add notes that a pod waits for an object. It is called before the object is read: no change is missed in between.
func (w *waits) add(uid types.UID, key store.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[key] == nil {
		w.pods[key] = sets.New[types.UID]()
	}
	if w.keys[uid] == nil {
		w.keys[uid] = sets.New[store.Key]()
	}
	w.pods[key].Insert(uid)
	w.keys[uid].Insert(key)
}

// drop removes all waits of a pod.
func (w *waits) drop(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.keys[uid] {
		w.pods[key].Delete(uid)
		if w.pods[key].Len() == 0 {
			delete(w.pods, key)
		}
	}
	delete(w.keys, uid)
}

// waitingFor returns the pods that wait for an object.
func (w *waits) waitingFor(key store.Key) []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[key].UnsortedList()
}

// waitingForKind returns the pods that wait for any object of a kind.
func (w *waits) waitingForKind(kind schema.GroupVersionKind) []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := sets.New[types.UID]()
	for key, uids := range w.pods {
		if key.Kind == kind {
			pods = pods.Union(uids)
		}
	}
	return pods.UnsortedList()
}

// Waiting returns the pods that wait for an object of the store or for a volume.
func (p *Populator) Waiting() []types.UID {
	p.waits.mu.Lock()
	defer p.waits.mu.Unlock()
	return slices.Collect(maps.Keys(p.waits.keys))
}

// claims and persistentVolumes make a populator follow the store: they resolve the pods that wait for an object again.
type (
	claims            struct{ p *Populator }
	persistentVolumes struct{ p *Populator }
)

// Listed implements store.Follower.
func (f claims) Listed(listed []*v1.PersistentVolumeClaim) {
	f.p.dirty.AddAll(f.p.waits.waitingForKind(store.PersistentVolumeClaims))
	for _, claim := range listed {
		f.p.options.Expansion.ClaimChanged(claim)
	}
}

// Changed implements store.Follower.
func (f claims) Changed(_ store.EventType, claim *v1.PersistentVolumeClaim) {
	f.p.dirty.AddAll(f.p.waits.waitingFor(store.Key{Kind: store.PersistentVolumeClaims, Namespace: claim.Namespace, Name: claim.Name}))
	f.p.options.Expansion.ClaimChanged(claim)
}

// Listed implements store.Follower.
func (f persistentVolumes) Listed(listed []*v1.PersistentVolume) {
	f.p.dirty.AddAll(f.p.waits.waitingForKind(store.PersistentVolumes))
	for _, pv := range listed {
		f.p.options.Expansion.VolumeChanged(pv)
	}
}

// Changed implements store.Follower.
func (f persistentVolumes) Changed(_ store.EventType, pv *v1.PersistentVolume) {
	f.p.dirty.AddAll(f.p.waits.waitingFor(store.Key{Kind: store.PersistentVolumes, Name: pv.Name}))
	f.p.options.Expansion.VolumeChanged(pv)
}
