package scheduling

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// ClusterEventKind is the kind of a change.
type ClusterEventKind uint8

// The kinds of change.
const (
	// ClaimChanged says that a claim was created, changed or deleted.
	ClaimChanged ClusterEventKind = iota + 1
	// VolumeChanged says that a volume was created, changed or deleted.
	VolumeChanged
	// ClassChanged says that a class was created, changed or deleted.
	ClassChanged
	// NodeChanged says that a node is new, or has other labels.
	NodeChanged
	// LimitRaised says that a driver can attach more volumes to a node, or has no limit there any more.
	LimitRaised
	// CapacityRaised says that a segment has more free capacity.
	CapacityRaised
	// DriverChanged says that a CSIDriver was created, changed or deleted: the driver may no longer publish capacity.
	DriverChanged
	// PodLeft says that a pod has left its node.
	PodLeft
	// AttachmentGone says that a volume was detached.
	AttachmentGone
	// ReservationReleased says that a reservation ended without its pod.
	ReservationReleased
	// AttributesClassChanged says that a VolumeAttributesClass was created, changed or deleted.
	AttributesClassChanged
)

// ClusterEvent is a change that may make a refused pod possible.
type ClusterEvent struct {
	// Kind is the kind of the change.
	Kind ClusterEventKind
	// Name is the object's name; for PodLeft and ReservationReleased the pod's.
	Name types.NamespacedName
	// Class is the class of a volume or a capacity, Driver the driver of a limit, Node the node of a limit, a pod or an
	// attachment.
	Class, Driver, Node string
	// Claim is the claim that a volume names.
	Claim types.NamespacedName
	// Claims are the claims of a pod that has left.
	Claims []types.NamespacedName
}

// Waits holds the changes for which a refused pod waits. Keep it with the pod, and try the pod again after a change
// that ends it.
type Waits struct {
	reasons uint64
	claims  []claimName
	drivers []string
}

func (w Waits) has(reasons ...Reason) bool {
	return slices.ContainsFunc(reasons, func(r Reason) bool { return w.reasons&(1<<r) != 0 })
}

// Waits returns the changes after which the pod may have its volumes on more nodes.
func (r *Result) Waits() Waits {
	w := Waits{claims: r.claims}
	for slot, v := range r.results {
		if r.names[slot] != "" {
			w.reasons |= uint64(v.reasons)
		}
	}
	for _, d := range r.drivers {
		w.drivers = append(w.drivers, d.name)
	}
	return w
}

// Waits returns the changes for which the pod waits.
func (e *PodError) Waits() Waits {
	return Waits{reasons: 1 << e.Reason, claims: []claimName{{name: e.Claim, volume: e.Volume}}}
}

// EndedBy reports whether to try the pod again after a change.
func (w Waits) EndedBy(c ClusterEvent) bool {
	switch c.Kind {
	case ClaimChanged:
		return w.names(c.Name)
	case VolumeChanged:
		return w.names(c.Claim) || slices.ContainsFunc(w.claims, func(claim claimName) bool {
			return claim.volume == c.Name.Name || claim.volume == "" && claim.class == c.Class
		})
	case ClassChanged:
		return w.has(ClaimUnbound) || slices.ContainsFunc(w.claims, func(claim claimName) bool { return claim.class == c.Name.Name })
	case AttributesClassChanged:
		return w.has(NoAttributesClass) && slices.ContainsFunc(w.claims, func(claim claimName) bool { return claim.attributes == c.Name.Name })
	case NodeChanged:
		return w.reasons < 1<<ClaimMissing
	case LimitRaised, AttachmentGone:
		return w.has(AttachLimit) && (c.Driver == "" || slices.Contains(w.drivers, c.Driver))
	case CapacityRaised:
		return w.has(NoCapacity) && slices.ContainsFunc(w.claims, func(claim claimName) bool { return claim.class == c.Class })
	case DriverChanged:
		return w.has(NoCapacity)
	case PodLeft:
		return w.has(AttachLimit, DiskConflict) || slices.ContainsFunc(c.Claims, w.names)
	case ReservationReleased:
		return w.has(SelectedElsewhere, NoVolume, NoTopology, NoCapacity, NoAttributesClass, AttachLimit, InUseByPod, InUseOnOtherNode, DiskConflict, NodeAffinity, Zone)
	default:
		return true
	}
}

func (w Waits) names(claim types.NamespacedName) bool {
	return slices.ContainsFunc(w.claims, func(c claimName) bool { return c.name == claim })
}

// report calls Options.Changed. The caller does not hold s.mu.
func (s *Scheduler) report(c ClusterEvent) {
	if s.options.Changed != nil {
		s.options.Changed(c)
	}
}

// get returns the mirror's object with the name of obj, nil for none.
func get[T store.Object](m *store.Mirror[T], obj T) T {
	now, _ := m.Get(store.NameOf(obj))
	return now
}

func (s *Scheduler) nodeChanged(node *v1.Node) {
	s.mu.Lock()
	now := get(s.nodes, node)
	better := s.index.refreshNode(node.Name, now)
	if now == nil {
		s.wakeOn(node.Name)
	}
	s.mu.Unlock()
	if better {
		s.report(ClusterEvent{Kind: NodeChanged, Name: store.NameOf(node), Node: node.Name})
	}
}

// wakeOn wakes the reservations of a node. The caller holds s.mu.
func (s *Scheduler) wakeOn(node string) {
	for _, r := range s.index.reservations {
		if r.node == node {
			r.notify()
		}
	}
}

func (s *Scheduler) podChanged(p *v1.Pod) {
	s.mu.Lock()
	left, released := s.index.refreshPod(store.NameOf(p), get(s.pods, p))
	s.mu.Unlock()
	if released != nil {
		s.report(ClusterEvent{Kind: ReservationReleased, Name: released.key.name, Node: released.node})
	}
	if left != nil {
		s.report(ClusterEvent{Kind: PodLeft, Name: left.key.name, Node: left.node, Claims: left.claims})
	}
}

func (s *Scheduler) claimChanged(claim *v1.PersistentVolumeClaim) {
	name := store.NameOf(claim)
	s.mu.Lock()
	old := s.index.capacities.allocations[name]
	s.index.refreshClaim(name, get(s.claims, claim))
	freed := old != nil && s.index.capacities.allocations[name] != old
	s.wake(name)
	s.mu.Unlock()
	s.report(ClusterEvent{Kind: ClaimChanged, Name: name, Claim: name})
	if freed {
		s.report(ClusterEvent{Kind: CapacityRaised, Class: old.class, Node: old.node})
	}
}

func (s *Scheduler) volumeChanged(pv *v1.PersistentVolume) {
	c := ClusterEvent{Kind: VolumeChanged, Name: store.NameOf(pv), Class: objects.ClassOfVolume(pv)}
	s.mu.Lock()
	for claim := range s.index.claimsOf[pv.Name] {
		s.wake(claim)
	}
	for claim := range s.index.reservedBy[pv.Name] {
		s.wake(claim)
	}
	s.index.refreshVolume(pv.Name, get(s.volumes, pv))
	s.mu.Unlock()
	if pv.Spec.ClaimRef != nil {
		c.Claim = objects.ClaimNameOf(pv)
	}
	s.report(c)
}

// wake wakes the reservations that wait for a claim. The caller holds s.mu.
func (s *Scheduler) wake(claim types.NamespacedName) {
	for r := range s.waits[claim] {
		r.notify()
	}
}

func (s *Scheduler) classChanged(class *storagev1.StorageClass) {
	s.mu.Lock()
	s.index.refreshClass(class.Name, get(s.classes, class))
	s.mu.Unlock()
	s.report(ClusterEvent{Kind: ClassChanged, Name: store.NameOf(class), Class: class.Name})
}

func (s *Scheduler) attributesChanged(class *storagev1.VolumeAttributesClass) {
	s.mu.Lock()
	now := get(s.attributes, class)
	if now == nil {
		delete(s.index.attributeDrivers, class.Name)
	} else {
		s.index.attributeDrivers[class.Name] = now.DriverName
	}
	s.mu.Unlock()
	s.report(ClusterEvent{Kind: AttributesClassChanged, Name: store.NameOf(class)})
}

func (s *Scheduler) csiNodeChanged(node *storagev1.CSINode) {
	s.mu.Lock()
	raised := s.index.refreshCSINode(node.Name, get(s.csiNodes, node))
	s.mu.Unlock()
	for _, driver := range raised {
		s.report(ClusterEvent{Kind: LimitRaised, Name: store.NameOf(node), Node: node.Name, Driver: driver})
	}
}

func (s *Scheduler) csiDriverChanged(driver *storagev1.CSIDriver) {
	s.mu.Lock()
	s.index.capacities.refreshDriver(driver.Name, get(s.csiDrivers, driver))
	s.mu.Unlock()
	s.report(ClusterEvent{Kind: DriverChanged, Name: store.NameOf(driver), Driver: driver.Name})
}

func (s *Scheduler) capacityChanged(c *storagev1.CSIStorageCapacity) {
	s.mu.Lock()
	better := s.index.capacities.refresh(store.NameOf(c), get(s.capacities, c))
	s.mu.Unlock()
	if better {
		s.report(ClusterEvent{Kind: CapacityRaised, Name: store.NameOf(c), Class: c.StorageClassName})
	}
}

// reportExpired reports more free capacity when a new volume is no longer subtracted, until ctx ends.
func (s *Scheduler) reportExpired(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.index.capacities.expiryAdded:
		case <-timer.C:
		}
		s.mu.Lock()
		now := time.Now()
		expired, next := s.index.capacities.expired(now)
		s.mu.Unlock()
		for _, c := range expired {
			s.report(ClusterEvent{Kind: CapacityRaised, Name: c.name, Class: c.class})
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(next.Sub(now))
		}
	}
}

func (s *Scheduler) attachmentChanged(at *storagev1.VolumeAttachment) {
	s.mu.Lock()
	gone := s.index.refreshAttachment(at.Name, get(s.attachments, at))
	s.mu.Unlock()
	if gone != nil {
		s.report(ClusterEvent{Kind: AttachmentGone, Name: store.NameOf(at), Node: gone.object.Spec.NodeName})
	}
}
