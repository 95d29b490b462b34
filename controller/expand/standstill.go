package expand

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
)

// standstill is the reason why a claim that requests more is not expanded now.
type standstill struct {
	err     error
	uid     types.UID
	request resource.Quantity
	// until is the time of the next attempt if nothing changes before. Zero means that there is none.
	until time.Time
}

// isOf reports whether the reason is about the current request of the claim.
func (s standstill) isOf(claim *v1.PersistentVolumeClaim) bool {
	return s.uid == claim.UID && s.request.Cmp(requested(claim)) == 0
}

// standstills holds the claims that are not expanded now. Its methods may be called from several goroutines at once.
type standstills struct {
	dirty *workqueue.Queue[types.NamespacedName]

	mu     sync.Mutex // no call that waits is made under it
	claims map[types.NamespacedName]standstill
}

func newStandstills(dirty *workqueue.Queue[types.NamespacedName]) *standstills {
	return &standstills{dirty: dirty, claims: map[types.NamespacedName]standstill{}}
}

// of returns the reason of a claim, and false if there is none.
func (w *standstills) of(name types.NamespacedName) (standstill, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, stays := w.claims[name]
	return s, stays
}

// put stores the reason of a claim.
func (w *standstills) put(name types.NamespacedName, s standstill) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims[name] = s
}

// keep is put. If the reason has a time, keep also makes the claim dirty at that time.
func (w *standstills) keep(name types.NamespacedName, s standstill) {
	w.put(name, s)
	if !s.until.IsZero() {
		w.dirty.AddAt(name, s.until)
	}
}

// forget removes the reason of a claim.
func (w *standstills) forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claims, name)
}

// resume is forget, but keeps the reason while a node makes the attempt that mayTry allowed.
func (w *standstills) resume(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.claims[name]; s.err == nil && time.Now().Before(s.until) {
		return
	}
	delete(w.claims, name)
}
