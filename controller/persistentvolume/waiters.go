package persistentvolume

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/ordered"
	"github.com/volumekit/volumekit/store"
)

// waiters are the claims that found no volume, in the order in which a volume that becomes free is offered to them: first
// the one that asks for most of those that it is large enough for, of these the one that has waited longest. One claim is
// woken at a time: a volume that a thousand claims wait for does not wake a thousand.
//
// A claim to which a volume was offered answers when it has been looked at, also when that failed: what it did not take is offered
// to the next.
// Its methods may be called from several goroutines at once.
type waiters struct {
	mu      sync.Mutex // held over nothing that waits
	shelves map[shelf][]*queue
	claims  map[types.NamespacedName]*waiter
	turns   uint64
}

// queue is the claims of one shelf that ask for the same access modes.
type queue struct {
	modes   []v1.PersistentVolumeAccessMode // sorted
	waiters *ordered.Set[*waiter]
}

// waiter is one claim that waits, or one to which a volume was offered.
type waiter struct {
	need  need
	name  types.NamespacedName
	bytes int64
	turn  uint64
	queue *queue // nil while a volume is offered to it
	// offer is the volume that was offered; passed the version of one that it did not take.
	offer, passed string
}

func compareWaiters(a, b *waiter) int {
	return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.turn, b.turn))
}

func newWaiters() *waiters {
	return &waiters{shelves: map[shelf][]*queue{}, claims: map[types.NamespacedName]*waiter{}}
}

// add has a claim wait. It keeps its turn, and what it has not answered to. It returns the name of the volume that was offered to
// another claim of its name, which is gone, or "".
func (w *waiters) add(n need) (volumeName string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := store.NameOf(n.claim)
	next := &waiter{need: n, name: name, bytes: requestedBytes(n.claim)}
	old := w.claims[name]
	if old != nil {
		w.leave(old)
	}
	switch {
	case old != nil && old.need.claim.UID == n.claim.UID:
		next.turn, next.offer, next.passed = old.turn, old.offer, old.passed
	case old != nil:
		volumeName = volumeOffered(old.offer)
		fallthrough
	default:
		w.turns++
		next.turn = w.turns
	}
	w.claims[name] = next
	if next.offer == "" {
		w.queueUp(next)
	}
	return volumeName
}

// queueUp puts a claim where volumes are offered. w.mu is held.
func (w *waiters) queueUp(claim *waiter) {
	claim.queue = w.queueOf(claim.need.claim)
	claim.queue.waiters.Add(claim)
}

// leave takes a claim away from where volumes are offered. w.mu is held.
func (w *waiters) leave(claim *waiter) {
	q := claim.queue
	if q == nil {
		return
	}
	claim.queue = nil
	q.waiters.Remove(claim)
	if q.waiters.Len() > 0 {
		return
	}
	key := shelfOfClaim(claim.need.claim)
	w.shelves[key] = slices.DeleteFunc(w.shelves[key], func(other *queue) bool { return other == q })
	if len(w.shelves[key]) == 0 {
		delete(w.shelves, key)
	}
}

// queueOf returns the queue of a claim, and makes it when there is none. w.mu is held.
func (w *waiters) queueOf(claim *v1.PersistentVolumeClaim) *queue {
	modes := slices.Clone(claim.Spec.AccessModes)
	slices.Sort(modes)
	for _, q := range w.shelves[shelfOfClaim(claim)] {
		if slices.Equal(q.modes, modes) {
			return q
		}
	}
	made := &queue{modes: modes, waiters: ordered.New(compareWaiters)}
	w.shelves[shelfOfClaim(claim)] = append(w.shelves[shelfOfClaim(claim)], made)
	return made
}

// offer offers a volume to the claim that is to have it, and returns its name; false when nobody waits for such a volume.
func (w *waiters) offer(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size, version := bytesOf(capacity(pv)), versionOf(pv)
	var best *waiter
	for _, q := range w.shelves[shelfOfVolume(pv)] {
		for claim := range q.waiters.From(&waiter{bytes: size}) {
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

// answer is told that a claim to which a volume may have been offered was looked at. If it waits still, it returns the name of that
// volume, which goes to the next claim; else "".
func (w *waiters) answer(name types.NamespacedName) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	claim := w.claims[name]
	if claim == nil || claim.offer == "" {
		return ""
	}
	offered := claim.offer
	claim.offer, claim.passed = "", offered
	w.queueUp(claim)
	return volumeOffered(offered)
}

// remove has a claim not wait any more. It returns the name of the volume that was offered to it, or "".
func (w *waiters) remove(name types.NamespacedName) string {
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
