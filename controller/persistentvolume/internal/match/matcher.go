// Package match decides which volume a claim gets. Its rules are functions of a claim and a volume. A [Matcher] keeps the
// available volumes and the claims that wait for one.
package match

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// Matcher gives volumes that name no claim to claims. A volume goes to one claim at a time, and a volume that becomes free wakes one
// claim at a time. Its methods may be called from several goroutines at once.
type Matcher struct {
	available *available
	waiting   *waiting
	recheck   func(volumeName string)
}

// New returns a Matcher. volumeNamed returns a volume as it was seen last, and false when it is gone. recheck has a volume looked at
// again, which calls Offer if no claim has it; neither may call the Matcher or wait.
func New(volumeNamed func(name string) (*v1.PersistentVolume, bool), recheck func(volumeName string)) *Matcher {
	return &Matcher{available: newAvailable(volumeNamed), waiting: newWaiting(), recheck: recheck}
}

// Refresh reads a volume again that is new, changed or gone.
func (m *Matcher) Refresh(volumeName string) { m.available.refresh(volumeName) }

// Take returns the volume that a claim gets, or nil. The volume is the claim's until it is given back, or names a claim. When Take
// returns nil, the claim waits: it waits before Take looks for the last time, so that it misses no volume.
func (m *Matcher) Take(n Need) *v1.PersistentVolume {
	if pv := m.available.take(n); pv != nil {
		return pv
	}
	m.offerNext(store.NameOf(n.claim), m.waiting.add(n))
	return m.available.take(n)
}

// GiveBack makes a volume available again that was taken and not bound.
func (m *Matcher) GiveBack(volumeName string) {
	if m.available.giveBack(volumeName) {
		m.recheck(volumeName)
	}
}

// Offer wakes the claim that is to have an available volume, and reports whether the volume is kept for a claim now. wake has the
// claim looked at and reports whether it was idle. The volume is kept for an idle claim, so that no smaller claim that is woken at
// the same time takes it. It is not kept for a busy claim, which may hang in a call: that claim gets the volume if it is still
// available then.
func (m *Matcher) Offer(pv *v1.PersistentVolume, wake func(claim types.NamespacedName) (idle bool)) (isKept bool) {
	return m.available.offer(pv, func(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
		claim, waits := m.waiting.offer(pv)
		return claim, waits && wake(claim)
	})
}

// Seen ends the offer to a claim that was looked at, also when that failed: a volume that it did not take goes to the next claim.
func (m *Matcher) Seen(claim types.NamespacedName) { m.offerNext(claim, m.waiting.seen(claim)) }

// Remove ends the wait of a claim that is bound, gone or lost.
func (m *Matcher) Remove(claim types.NamespacedName) { m.offerNext(claim, m.waiting.remove(claim)) }

// offerNext has a volume offered to the next claim that was offered to this one; "" means none.
func (m *Matcher) offerNext(claim types.NamespacedName, volumeName string) {
	if volumeName != "" {
		m.available.withdraw(volumeName, claim)
		m.recheck(volumeName)
	}
}
