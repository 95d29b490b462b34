package expand

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
)

// standstill is why a claim that asks for more is not worked on.
type standstill struct {
	err     error
	uid     types.UID
	request resource.Quantity
	// until is when it is tried again though nothing has changed; zero means never.
	until time.Time
}

// isOf reports whether it is about what the claim asks for now.
func (s standstill) isOf(claim *v1.PersistentVolumeClaim) bool {
	return s.uid == claim.UID && s.request.Cmp(requested(claim)) == 0
}

// standstills are the claims that are not worked on. Its methods may be called from several goroutines at once.
type standstills struct {
	dirty *workqueue.Queue[types.NamespacedName]

	mu     sync.Mutex // no call that waits is made under it
	claims map[types.NamespacedName]standstill
}

func newStandstills(dirty *workqueue.Queue[types.NamespacedName]) *standstills {
	return &standstills{dirty: dirty, claims: map[types.NamespacedName]standstill{}}
}

// of returns why a claim is not worked on, and false when nothing is known against it.
func (w *standstills) of(name types.NamespacedName) (standstill, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, stays := w.claims[name]
	return s, stays
}

// put keeps why a claim is not worked on.
func (w *standstills) put(name types.NamespacedName, s standstill) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims[name] = s
}

// keep is put, and has the claim looked at when its time has come.
func (w *standstills) keep(name types.NamespacedName, s standstill) {
	w.put(name, s)
	if !s.until.IsZero() {
		w.dirty.AddAt(name, s.until)
	}
}

// forget drops what is known against a claim.
func (w *standstills) forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claims, name)
}

// resume is forget, unless a node has just got another chance with the claim.
func (w *standstills) resume(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.claims[name]; s.err == nil && time.Now().Before(s.until) {
		return
	}
	delete(w.claims, name)
}
