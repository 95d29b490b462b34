package expand

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
)

// request is what a claim asks for in one kind of change. A failure of one request does not delay another.
type request struct {
	uid types.UID
	// value is the size that the claim requests, or the classes of attributes that it names.
	value string
}

// blockedClaim is the reason why a claim does not get its change now.
type blockedClaim struct {
	err     error
	request request
	// until is the time of the next attempt if nothing changes before. Zero means that there is none.
	until time.Time
}

// blockedClaims holds the claims that do not get one kind of change now. Its methods may be called from several goroutines at
// once.
type blockedClaims struct {
	dirty *workqueue.Queue[types.NamespacedName]

	mu     sync.Mutex // no call that waits is made under it
	claims map[types.NamespacedName]blockedClaim
}

func newBlockedClaims(dirty *workqueue.Queue[types.NamespacedName]) *blockedClaims {
	return &blockedClaims{dirty: dirty, claims: map[types.NamespacedName]blockedClaim{}}
}

// get returns the reason of a claim, and false if there is none.
func (w *blockedClaims) get(name types.NamespacedName) (blockedClaim, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, stays := w.claims[name]
	return s, stays
}

// put stores the reason of a claim.
func (w *blockedClaims) put(name types.NamespacedName, s blockedClaim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims[name] = s
}

// keep is put. If the reason has a time, keep also makes the claim dirty at that time.
func (w *blockedClaims) keep(name types.NamespacedName, s blockedClaim) {
	w.put(name, s)
	if !s.until.IsZero() {
		w.dirty.AddAt(name, s.until)
	}
}

// mustWait reports whether the request of a claim must wait, and makes the claim dirty at the end of the wait.
func (w *blockedClaims) mustWait(name types.NamespacedName, wanted request) bool {
	s, stays := w.get(name)
	if !stays || s.request != wanted || !time.Now().Before(s.until) {
		return false
	}
	w.dirty.AddAt(name, s.until)
	return true
}

// remove removes the reason of a claim.
func (w *blockedClaims) remove(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claims, name)
}

// unblock is remove, but keeps the reason while a node makes the attempt that expansions.mayTry allowed.
func (w *blockedClaims) unblock(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.claims[name]; s.err == nil && time.Now().Before(s.until) {
		return
	}
	delete(w.claims, name)
}

// named returns what a pointer to a name holds, "" for none.
func named(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}

// classOf returns the name of a claim's storage class, "" for none.
func classOf(claim *v1.PersistentVolumeClaim) string {
	if name, annotated := claim.Annotations[v1.BetaStorageClassAnnotation]; annotated {
		return name
	}
	return named(claim.Spec.StorageClassName)
}
