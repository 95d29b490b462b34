package scheduling

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// ErrReserved says that the pod already has a node, in the store or by another reservation.
var ErrReserved = errors.New("the pod has a node already")

// Reservation reserves a pod's resources on a node: its existing volumes, capacity for its new ones, and its share of
// attach limits. Make it with [Scheduler.Reserve]. It ends when it is released, or when the store shows the pod on a
// node, ended or gone.
type Reservation struct {
	scheduler *Scheduler
	key       podKey
	node      string
	choices   []choice      // by the claims' names
	wake      chan struct{} // holds one value after a change for which Bind waits
	stored    bool          // the store has had the pod; guarded by the scheduler's lock, like the next fields
	ended     bool
	binding   bool // a Bind runs
}

// choice is an unbound claim of a pod, and the volume that it gets.
type choice struct {
	name   types.NamespacedName
	uid    types.UID
	volume string // "": it is made
	pvUID  types.UID

	reservation               *claimReservation // the reservation of the claim
	placing, selected         string            // the state of the claim at the choice
	claimBefore, volumeBefore string            // the versions before Bind's own writes
}

// claimReservation is the volume that a claim gets by the reservations of its pods.
type claimReservation struct {
	volume string // "": it is made
	node   string
	users  int
}

// Node returns the node on which the pod has its volumes.
func (r *Reservation) Node() string { return r.node }

// Volumes returns the existing volumes to which the pod's claims will be bound. It omits claims that are bound or get a
// new volume.
func (r *Reservation) Volumes() map[types.NamespacedName]string {
	volumes := map[types.NamespacedName]string{}
	for i := range r.choices {
		if c := &r.choices[i]; c.volume != "" {
			volumes[c.name] = c.volume
		}
	}
	return volumes
}

// Reserve reserves a pod's volumes, capacity and attach limits on a node: no other pod gets them. It decides again,
// because the state may have changed since Find. The error is a [*PodError], a [*RefusalError], or matches
// [ErrReserved]; for a pod without a name it matches [volume.ErrInvalid]. Reserve does no I/O, and keeps nothing of p.
func (s *Scheduler) Reserve(p *v1.Pod, node string) (*Reservation, error) {
	if p == nil || p.Name == "" {
		return nil, fmt.Errorf("reserve node %q: the pod has no name: %w", node, volume.ErrInvalid)
	}
	r, refused, err := s.reserve(p, node)
	if err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, refused.Why(node)
	}
	return r, nil
}

// reserve returns a reservation, or the result that refuses it.
func (s *Scheduler) reserve(p *v1.Pod, node string) (*Reservation, *Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.index
	if x.pods[keyOfPod(p).name] != nil {
		return nil, nil, fmt.Errorf("reserve node %q for pod %q: %w", node, keyOfPod(p).name, ErrReserved)
	}
	slot, there := x.nodes.find(node)
	if !there {
		return nil, nil, &RefusalError{Node: node, Pod: keyOfPod(p).name, Reason: NodeUnknown, Reasons: []Reason{NodeUnknown}}
	}
	search, err := x.newSearch(p, slot, slot+1, s.options.Score)
	if err != nil {
		return nil, nil, err
	}
	defer search.release()
	search.run()
	if search.results[0].first != 0 {
		return nil, s.resultOf(search), nil
	}
	stored, known := s.pods.Get(keyOfPod(p).name)
	r := &Reservation{
		scheduler: s, key: keyOfPod(p), node: node, stored: known && stored.UID == p.UID,
		choices: search.choicesAt(0), wake: make(chan struct{}, 1),
	}
	x.reserve(r, p)
	return r, nil, nil
}

// choicesAt returns the choices for the unbound claims on the node with index i, in the order of the claims' names.
func (p *search) choicesAt(i int) []choice {
	var choices []choice
	for at := range p.needs {
		n := &p.needs[at]
		if n.bound {
			continue
		}
		c := choice{name: n.name, uid: n.claim.UID, placing: n.claim.Annotations[annPlacing], selected: n.claim.Annotations[objects.AnnSelectedNode]}
		if v := p.choices[at][i]; v.pvState != nil {
			c.volume, c.pvUID = v.object.Name, v.object.UID
		}
		choices = append(choices, c)
	}
	slices.SortFunc(choices, func(a, b choice) int { return strings.Compare(a.name.Name, b.name.Name) })
	return choices
}

// reserve enters the choices of a reservation.
func (x *index) reserve(r *Reservation, p *v1.Pod) {
	for i := range r.choices {
		c := &r.choices[i]
		c.reservation = x.addReservation(c, r.node)
	}
	x.reservations[r.key.name] = r
	x.addPod(p, r.node)
}

// addReservation reserves the choice for its claim, or joins the reservation that the claim has.
func (x *index) addReservation(c *choice, node string) *claimReservation {
	reserved := x.claimReservations[c.name]
	if reserved == nil {
		reserved = &claimReservation{volume: c.volume, node: node}
		x.claimReservations[c.name] = reserved
		x.takeVolume(c.name, reserved)
	}
	reserved.users++
	x.updateAllocation(c.name)
	x.recountClaim(c.name)
	return reserved
}

// takeVolume takes the volume of a reservation out of the free volumes. returnVolume adds it again.
func (x *index) takeVolume(claim types.NamespacedName, reserved *claimReservation) {
	if reserved.volume == "" {
		return
	}
	link(x.reservedBy, reserved.volume, claim)
	if v := x.volumes[reserved.volume]; v != nil {
		x.setFree(v)
	}
}

func (x *index) returnVolume(claim types.NamespacedName, reserved *claimReservation) {
	if reserved.volume == "" {
		return
	}
	unlink(x.reservedBy, reserved.volume, claim)
	if v := x.volumes[reserved.volume]; v != nil {
		x.setFree(v)
	}
}

// dropReservation ends the reservation of a claim, for all pods that share it.
func (x *index) dropReservation(name types.NamespacedName, reserved *claimReservation) {
	delete(x.claimReservations, name)
	x.returnVolume(name, reserved)
	x.updateAllocation(name)
	x.recountClaim(name)
}

// checkReservation ends the reservation for a claim that is gone, or that got another volume. If the claim got its reserved
// volume, the volume stays reserved until its own object shows the claim.
func (x *index) checkReservation(name types.NamespacedName, claim *v1.PersistentVolumeClaim) {
	reserved := x.claimReservations[name]
	if reserved != nil && (claim == nil || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != reserved.volume) {
		x.dropReservation(name, reserved)
	}
}

// dropReservationsOf ends the reservations of a volume that is gone.
func (x *index) dropReservationsOf(volume string) {
	for name := range x.reservedBy[volume] {
		x.dropReservation(name, x.claimReservations[name])
	}
}

// end undoes reserve. The state of the store stays.
func (x *index) end(r *Reservation) {
	if r.ended {
		return
	}
	r.ended = true
	delete(x.reservations, r.key.name)
	for i := range r.choices {
		c := &r.choices[i]
		c.reservation.users--
		if c.reservation.users == 0 && x.claimReservations[c.name] == c.reservation {
			x.dropReservation(c.name, c.reservation)
		}
	}
	if p := x.pods[r.key.name]; p != nil && p.key == r.key && !p.stored {
		x.removePod(p)
	}
	r.notify()
}

// endReservationOf ends the reservation of a pod that the store shows on a node, ended or gone. It returns the
// reservation if the pod is not on its node, and nil otherwise.
func (x *index) endReservationOf(name types.NamespacedName, now *v1.Pod) (released *Reservation) {
	r := x.reservations[name]
	if r == nil {
		return nil
	}
	gone := now == nil && r.stored || now != nil && now.UID != r.key.uid
	if !gone && (now == nil || now.Spec.NodeName == "" && !volume.IsPodTerminated(now)) {
		r.stored = now != nil
		return nil
	}
	x.end(r)
	if gone || now.Spec.NodeName != r.node || volume.IsPodTerminated(now) {
		return r
	}
	return nil
}

// notify wakes Bind.
func (r *Reservation) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Release ends the reservation. Bind's writes stay in the store: the volume then belongs to the claim, and the next
// Find uses it. Only the first call has an effect, and none on a Reservation that [Scheduler.Reserve] did not return.
func (r *Reservation) Release() {
	if r == nil || r.scheduler == nil {
		return
	}
	s := r.scheduler
	s.mu.Lock()
	ended := r.ended
	s.index.end(r)
	s.mu.Unlock()
	if !ended {
		s.report(ClusterEvent{Kind: ReservationReleased, Name: r.key.name, Node: r.node})
	}
}
