// Package match decides which volume a claim gets. Its rules are functions of a claim and a volume. A [Matcher] keeps the
// available volumes and the claims that wait for one.
package match

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// Matcher assigns volumes that name no claim to claims. It gives a volume to one claim at a time, and a volume that becomes
// free wakes one claim at a time. Its methods may be called from several goroutines at once.
type Matcher struct {
	available *available
	waiting   *waiting
	recheck   func(volumeName string)
}

// New returns a Matcher. volumeNamed returns the last known version of a volume, and false for a volume that is gone.
// recheck queues a volume for another look, which calls Offer if no claim has the volume. Neither function may call the
// Matcher or wait.
func New(volumeNamed func(name string) (*v1.PersistentVolume, bool), recheck func(volumeName string)) *Matcher {
	return &Matcher{available: newAvailable(volumeNamed), waiting: newWaiting(), recheck: recheck}
}

// Refresh reads a new, changed or deleted volume again.
func (m *Matcher) Refresh(volumeName string) { m.available.refresh(volumeName) }

// Take returns a volume for a claim, or nil. The volume is the claim's until it is given back, or names a claim. If Take
// returns nil, the claim waits. Take adds it to the waiting claims before it looks a last time, so the claim misses no
// volume.
func (m *Matcher) Take(n Need) *v1.PersistentVolume {
	if pv := m.available.take(n); pv != nil {
		return pv
	}
	m.offerNext(store.NameOf(n.claim), m.waiting.add(n))
	return m.available.take(n)
}

// GiveBack makes a taken volume that was not bound available again.
func (m *Matcher) GiveBack(volumeName string) {
	if m.available.giveBack(volumeName) {
		m.recheck(volumeName)
	}
}

// Offer wakes the claim that should get an available volume, and reports whether the volume is kept for a claim now. wake
// queues the claim and reports whether it was idle. Offer keeps the volume for an idle claim, so a smaller claim that wakes
// at the same time cannot take it. It does not keep the volume for a busy claim, which may hang in a call. That claim gets
// the volume if it is still available then.
func (m *Matcher) Offer(pv *v1.PersistentVolume, wake func(claim types.NamespacedName) (idle bool)) (isKept bool) {
	return m.available.offer(pv, func(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
		claim, waits := m.waiting.offer(pv)
		return claim, waits && wake(claim)
	})
}

// EndOffer ends the offer to a claim after a worker has looked at the claim, even if that failed. If the claim did not take the
// volume, the next claim gets the offer.
func (m *Matcher) EndOffer(claim types.NamespacedName) { m.offerNext(claim, m.waiting.endOffer(claim)) }

// Remove ends the wait of a claim that is bound, gone or lost.
func (m *Matcher) Remove(claim types.NamespacedName) { m.offerNext(claim, m.waiting.remove(claim)) }

// offerNext offers a volume, whose offer to claim has ended, to the next claim. An empty volumeName means none.
func (m *Matcher) offerNext(claim types.NamespacedName, volumeName string) {
	if volumeName != "" {
		m.available.withdraw(volumeName, claim)
		m.recheck(volumeName)
	}
}
