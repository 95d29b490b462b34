package scheduling

import (
	"errors"
	"fmt"

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
	stored    bool // the store has had the pod
	choices   []choice
	wake      chan struct{} // holds one value after a change for which Bind waits
	ended     bool          // guarded by the scheduler's lock, like the next field
	binding   bool          // a Bind runs
}

// choice is an unbound claim of a pod, and the volume that it gets.
type choice struct {
	name   types.NamespacedName
	uid    types.UID
	volume string // "": it is made
	pvUID  types.UID

	placing, selected         string // the state of the claim at the choice
	claimBefore, volumeBefore string // the versions after Bind's own writes
}

// claimHold is the volume that a claim gets by the reservations of its pods.
type claimHold struct {
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
	for _, c := range r.choices {
		if c.volume != "" {
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
	slot, there := x.nodes.there(node)
	if !there {
		return nil, nil, &RefusalError{Node: node, Pod: keyOfPod(p).name, Reason: NodeUnknown, Reasons: []Reason{NodeUnknown}}
	}
	search, err := x.newPlacing(p, slot, slot+1, s.options.Score)
	if err != nil {
		return nil, nil, err
	}
	defer search.done()
	search.run()
	if search.verdicts[0].main != 0 {
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

// choicesAt returns the choices for the unbound claims on the node with index i.
func (p *placing) choicesAt(i int) []choice {
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
	return choices
}

// reserve enters the choices of a reservation.
func (x *index) reserve(r *Reservation, p *v1.Pod) {
	for _, c := range r.choices {
		x.addHold(c, r.node)
	}
	x.reservations[r.key] = r
	x.addPod(p, r.node)
}

func (x *index) addHold(c choice, node string) {
	hold := x.claimHolds[c.name]
	if hold == nil {
		hold = &claimHold{volume: c.volume, node: node}
		x.claimHolds[c.name] = hold
		link(x.holdsOn, c.volume, c.name)
		x.hold(c)
	}
	hold.users++
	x.recharge(c.name)
	x.recountClaim(c.name)
}

// hold reserves a volume that names no claim for a claim.
func (x *index) hold(c choice) {
	v := x.volumes[c.volume]
	if v == nil || v.object.Spec.ClaimRef != nil {
		return
	}
	x.heldVolumes[c.volume] = c.name
	x.setFree(v)
}

// dropHold undoes one addHold, or all of a claim.
func (x *index) dropHold(name types.NamespacedName, hold *claimHold) {
	delete(x.claimHolds, name)
	unlink(x.holdsOn, hold.volume, name)
	if x.heldVolumes[hold.volume] == name {
		delete(x.heldVolumes, hold.volume)
		if v := x.volumes[hold.volume]; v != nil {
			x.setFree(v)
		}
	}
	x.recharge(name)
	x.recountClaim(name)
}

// checkHold ends the reservation for a claim that is gone, or that got another volume. If the claim got its reserved
// volume, the volume stays reserved until its own object shows the claim.
func (x *index) checkHold(name types.NamespacedName, claim *v1.PersistentVolumeClaim) {
	hold := x.claimHolds[name]
	if hold != nil && (claim == nil || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != hold.volume) {
		x.dropHold(name, hold)
	}
}

// end undoes reserve. The state of the store stays.
func (x *index) end(r *Reservation) {
	if r.ended {
		return
	}
	r.ended = true
	delete(x.reservations, r.key)
	for _, c := range r.choices {
		hold := x.claimHolds[c.name]
		if hold == nil {
			continue
		}
		hold.users--
		if hold.users == 0 {
			x.dropHold(c.name, hold)
		}
	}
	if p := x.pods[r.key.name]; p != nil && p.key == r.key && !p.stored {
		x.removePod(p)
	}
	r.notify()
}

// settleReservations ends the reservations of a pod that the store shows on a node, ended or gone. It returns those
// whose pod is not on their node.
func (x *index) settleReservations(name types.NamespacedName, now *v1.Pod) (released []*Reservation) {
	for key, r := range x.reservations {
		if key.name != name {
			continue
		}
		gone := now == nil && r.stored || now != nil && now.UID != key.uid
		if !gone && (now == nil || now.Spec.NodeName == "" && !volume.IsPodTerminated(now)) {
			continue
		}
		x.end(r)
		if gone || now.Spec.NodeName != r.node || volume.IsPodTerminated(now) {
			released = append(released, r)
		}
	}
	return released
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
		s.tell(ClusterEvent{Kind: ReservationReleased, Name: r.key.name, Node: r.node})
	}
}
