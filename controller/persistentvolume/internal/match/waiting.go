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

// waiting is the index of the claims that found no volume, in the order in which a free volume is offered to them: first the claim
// that asks for most of those that the volume is large enough for, of these the one that has waited longest. One claim is woken at a
// time: a volume that a thousand claims wait for does not wake a thousand. What the claim has not taken once it was looked at is
// offered to the next. Its methods may be called from several goroutines at once.
type waiting struct {
	mu     sync.Mutex // no call that waits is made under it
	groups map[fit.Group][]*queue
	claims map[types.NamespacedName]*waiter
	added  uint64 // how many claims have begun to wait
}

// queue is the claims of one group that ask for the same access modes.
type queue struct {
	modes  []v1.PersistentVolumeAccessMode // sorted
	claims *ordered.Set[*waiter]
}

// waiter is one claim that waits, or one to which a volume was offered.
type waiter struct {
	need  Need
	name  types.NamespacedName
	bytes int64
	order uint64 // that in which the claims began to wait
	queue *queue // nil while a volume is offered to it
	// offer is the volume that was offered; passed the version of one that it did not take.
	offer, passed string
}

func compareWaiters(a, b *waiter) int {
	return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.order, b.order))
}

func newWaiting() *waiting {
	return &waiting{groups: map[fit.Group][]*queue{}, claims: map[types.NamespacedName]*waiter{}}
}

// add has a claim wait. A claim that waits already keeps its place and its offer. add returns the name of the volume that was offered
// to an earlier claim of the same name, or "".
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

// enter puts a claim into its queue. It needs w.mu.
func (w *waiting) enter(claim *waiter) {
	claim.queue = w.queueOf(claim.need.claim)
	claim.queue.claims.Add(claim)
}

// leave takes a claim out of its queue, and the queue away with the last one. It needs w.mu.
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

// queueOf returns the queue of a claim, and makes it when there is none. It needs w.mu.
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

// offer offers a volume to the claim that comes first, and returns its name; false when no claim waits for such a volume.
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

// versionOf names a volume as it is now: one that has changed may be offered again.
func versionOf(pv *v1.PersistentVolume) string { return pv.Name + " " + pv.ResourceVersion }

// seen ends the offer to a claim that was looked at. If the claim still waits, it returns the name of the volume that was offered,
// which goes to the next claim; else "".
func (w *waiting) seen(name types.NamespacedName) string {
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
