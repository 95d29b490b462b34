package match

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/internal/ordered"
	"github.com/volumekit/volumekit/store"
)

// waiting is the index of the claims without a volume, in the order in which a free volume is offered to them. The
// first is the claim with the largest request that fits the volume; of several, the one that has waited longest. One
// claim is woken at a time: a volume for which a thousand claims wait does not wake a thousand. If the claim was synced
// and has not taken the volume, the next claim gets the offer. Its methods may be called from several goroutines at
// once.
type waiting struct {
	mu     sync.Mutex // not held during I/O
	groups map[fit.Group][]*queue
	claims map[types.NamespacedName]*waiter
	added  uint64 // how many claims have begun to wait
}

// queue holds the claims of one group that request the same access modes.
type queue struct {
	modes  []v1.PersistentVolumeAccessMode // sorted
	claims *ordered.Set[*waiter]
}

// waiter is one claim that waits or has an offer.
type waiter struct {
	need  Need
	name  types.NamespacedName
	bytes int64
	order uint64 // the order in which the claims began to wait
	queue *queue // nil while a volume is offered to it
	// offer is the offered volume; passed is the version of a volume that the claim did not take.
	offer, passed string
}

func compareWaiters(a, b *waiter) int {
	return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.order, b.order))
}

func newWaiting() *waiting {
	return &waiting{groups: map[fit.Group][]*queue{}, claims: map[types.NamespacedName]*waiter{}}
}

// add adds a claim to the waiting ones. A claim that already waits keeps its position and its offer. If an earlier
// claim of the same name had an offer, add returns the name of the offered volume, otherwise "".
func (w *waiting) add(n Need) (volumeName string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := store.NameOf(n.claim)
	next := &waiter{need: n, name: name, bytes: fit.RequestedBytes(n.claim)}
	old := w.claims[name]
	if old != nil {
		w.leave(old)
	}
	switch {
	case old != nil && old.need.claim.UID == n.claim.UID:
		next.order, next.offer, next.passed = old.order, old.offer, old.passed
	case old != nil:
		volumeName = volumeOffered(old.offer)
		fallthrough
	default:
		w.added++
		next.order = w.added
	}
	w.claims[name] = next
	if next.offer == "" {
		w.enter(next)
	}
	return volumeName
}

// enter adds a claim to its queue. The caller holds w.mu.
func (w *waiting) enter(claim *waiter) {
	claim.queue = w.queueOf(claim.need.claim)
	claim.queue.claims.Add(claim)
}

// leave removes a claim from its queue, and an empty queue. The caller holds w.mu.
func (w *waiting) leave(claim *waiter) {
	q := claim.queue
	if q == nil {
		return
	}
	claim.queue = nil
	q.claims.Remove(claim)
	if q.claims.Len() > 0 {
		return
	}
	key := fit.GroupOfClaim(claim.need.claim)
	w.groups[key] = slices.DeleteFunc(w.groups[key], func(other *queue) bool { return other == q })
	if len(w.groups[key]) == 0 {
		delete(w.groups, key)
	}
}

// queueOf returns the queue of a claim, and makes a missing one. The caller holds w.mu.
func (w *waiting) queueOf(claim *v1.PersistentVolumeClaim) *queue {
	modes := slices.Clone(claim.Spec.AccessModes)
	slices.Sort(modes)
	for _, q := range w.groups[fit.GroupOfClaim(claim)] {
		if slices.Equal(q.modes, modes) {
			return q
		}
	}
	made := &queue{modes: modes, claims: ordered.New(compareWaiters)}
	w.groups[fit.GroupOfClaim(claim)] = append(w.groups[fit.GroupOfClaim(claim)], made)
	return made
}

// offer offers a volume to the first claim, and returns its name; false if no claim waits for such a volume.
func (w *waiting) offer(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size, version := fit.Bytes(fit.Capacity(pv)), versionOf(pv)
	var best *waiter
	for _, q := range w.groups[fit.GroupOfVolume(pv)] {
		for claim := range q.claims.From(&waiter{bytes: size}) {
			if claim.passed == version || !claim.need.meets(pv) {
				continue
			}
			if best == nil || compareWaiters(claim, best) < 0 {
				best = claim
			}
			break
		}
	}
	if best == nil {
		return types.NamespacedName{}, false
	}
	w.leave(best)
	best.offer = version
	return best.name, true
}

// versionOf identifies the present version of a volume: a changed volume may be offered again.
func versionOf(pv *v1.PersistentVolume) string { return pv.Name + " " + pv.ResourceVersion }

// endOffer ends the offer to a synced claim. If the claim still waits, endOffer returns the name of the offered volume, which
// the next claim gets; otherwise "".
func (w *waiting) endOffer(name types.NamespacedName) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	claim := w.claims[name]
	if claim == nil || claim.offer == "" {
		return ""
	}
	offered := claim.offer
	claim.offer, claim.passed = "", offered
	w.enter(claim)
	return volumeOffered(offered)
}

// remove ends the wait of a claim. It returns the name of the volume that was offered to it, or "".
func (w *waiting) remove(name types.NamespacedName) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	claim := w.claims[name]
	if claim == nil {
		return ""
	}
	w.leave(claim)
	delete(w.claims, name)
	return volumeOffered(claim.offer)
}

func volumeOffered(version string) string {
	name, _, _ := strings.Cut(version, " ")
	return name
}
