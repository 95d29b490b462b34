package scheduling

import (
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// capacity is the free capacity of one segment for one class: the published capacity, less the volumes in progress.
type capacity struct {
	index    *index
	name     types.NamespacedName
	uid      types.UID
	version  string
	class    string
	selector *selector // nil: all nodes
	largest  int64     // of one volume
	total    int64     // of all volumes together
	known    int64     // the published capacity, 0 when there is none
	charged  int64     // for volumes in progress
	settling []settling
}

// settling is a new volume that the published capacity may still include.
type settling struct {
	bytes int64
	until time.Time
}

// settleTime is the longest time for which a new volume is subtracted, if its driver does not publish its capacity
// again.
const settleTime = time.Minute

// left returns the free capacity: of all volumes together, and of one volume.
func (c *capacity) left(now time.Time) int64 {
	left := c.total - c.charged
	for _, s := range c.settling {
		if now.Before(s.until) {
			left -= s.bytes
		}
	}
	return left
}

// segments are the capacities of one class.
type segments struct {
	local [][]*capacity // by slot: of this node alone
	wide  []*capacity
	count int // of all
}

func (s *segments) place(c *capacity) {
	slot, single := c.selector.single()
	if !single {
		s.wide = append(s.wide, c)
		return
	}
	for int(slot) >= len(s.local) {
		s.local = append(s.local, nil)
	}
	s.local[slot] = append(s.local[slot], c)
}

func (s *segments) unplace(c *capacity) {
	slot, single := c.selector.single()
	if !single {
		s.wide = without(s.wide, c)
		return
	}
	s.local[slot] = without(s.local[slot], c)
}

// place implements member.
func (c *capacity) place() {
	c.index.segments[c.class].place(c)
	c.index.chargeAnew(c)
}

// unplace implements member.
func (c *capacity) unplace() { c.index.segments[c.class].unplace(c) }

// limitsOf returns the limits of a published capacity: of one volume, of all volumes together, and the published value
// of the latter.
func limitsOf(object *storagev1.CSIStorageCapacity) (largest, total, known int64) {
	var one int64
	if object.Capacity != nil {
		known = fit.Bytes(*object.Capacity)
	}
	if object.MaximumVolumeSize != nil {
		one = fit.Bytes(*object.MaximumVolumeSize)
	}
	switch {
	case one <= 0:
		return known, known, known
	case object.Capacity == nil:
		return one, math.MaxInt64, 0
	}
	return one, max(one, known), known
}

// refreshCapacity updates a capacity from its last version in the mirror. It no longer subtracts volumes that were
// created before and have settled since. It reports whether the free capacity has grown.
func (x *index) refreshCapacity(name types.NamespacedName, object *storagev1.CSIStorageCapacity) bool {
	old := x.capacities[name]
	if old != nil && object != nil && object.UID == old.uid && object.ResourceVersion == old.version {
		return false
	}
	now := x.newCapacity(name, object)
	if old != nil {
		x.removeCapacity(old)
	}
	if now != nil {
		x.addCapacity(now)
	}
	return now != nil && (old == nil || now.exceeds(old))
}

// newCapacity returns the capacity of an object, nil if no node has it.
func (x *index) newCapacity(name types.NamespacedName, object *storagev1.CSIStorageCapacity) *capacity {
	if object == nil || object.NodeTopology == nil {
		return nil
	}
	selector, err := x.selectors.ofSegment(object.NodeTopology)
	if err != nil {
		x.logger.Warn("the topology of a capacity is malformed: no node has it", "capacity", name.String(), "error", err)
		return nil
	}
	c := &capacity{index: x, name: name, uid: object.UID, version: object.ResourceVersion, class: object.StorageClassName, selector: selector}
	c.largest, c.total, c.known = limitsOf(object)
	return c
}

// exceeds reports whether a pod may fit that did not fit an older version of the capacity.
func (c *capacity) exceeds(old *capacity) bool {
	now := time.Now()
	return c.largest > old.largest || c.left(now) > old.left(now) || c.class != old.class || c.selector != old.selector
}

func (x *index) addCapacity(c *capacity) {
	if x.segments[c.class] == nil {
		x.segments[c.class] = &segments{}
	}
	x.capacities[c.name] = c
	x.segments[c.class].count++
	if c.selector != nil {
		c.selector.members[c] = true
	}
	c.place()
}

func (x *index) removeCapacity(c *capacity) {
	c.unplace()
	if c.selector != nil {
		delete(c.selector.members, c)
	}
	x.selectors.release(c.selector)
	delete(x.capacities, c.name)
	x.segments[c.class].count--
	if x.segments[c.class].count == 0 {
		delete(x.segments, c.class)
	}
}

// charge is the part of a node's capacity that a claim takes while its volume is in progress.
type charge struct {
	class string
	node  string
	slot  int32
	bytes int64
}

// chargeAnew subtracts all volumes in progress in a capacity's segment.
func (x *index) chargeAnew(c *capacity) {
	c.charged = 0
	if slot, single := c.selector.single(); single {
		c.chargeAll(x.chargesAt[slot])
		return
	}
	for slot, charges := range x.chargesAt {
		if c.selector.has(slot) {
			c.chargeAll(charges)
		}
	}
}

func (c *capacity) chargeAll(charges map[*charge]bool) {
	for ch := range charges {
		if ch.class == c.class {
			c.charged += ch.bytes
		}
	}
}

// eachCapacityAt calls do with the capacities of a class on the node of a slot.
func (x *index) eachCapacityAt(class string, slot int32, do func(c *capacity)) {
	s := x.segments[class]
	if s == nil {
		return
	}
	if int(slot) < len(s.local) {
		for _, c := range s.local[slot] {
			do(c)
		}
	}
	for _, c := range s.wide {
		if c.selector.has(slot) {
			do(c)
		}
	}
}

// chargeOf returns the present charge of a claim: it has no volume, and its volume is in progress for a node, by the
// claim or by a reservation.
func (x *index) chargeOf(name types.NamespacedName) (charge, bool) {
	claim := x.claims[name]
	if claim == nil || claim.Spec.VolumeName != "" {
		return charge{}, false
	}
	node := claim.Annotations[objects.AnnSelectedNode]
	if hold := x.claimHolds[name]; hold != nil {
		node = hold.node
		if hold.volume != "" {
			node = ""
		}
	}
	class := x.classes[objects.ClassOf(claim)]
	if node == "" || class == nil || !provisions(class.object) {
		return charge{}, false
	}
	return charge{class: class.object.Name, node: node, bytes: fit.RequestedBytes(claim)}, true
}

// provisions reports whether the class can have new volumes.
func provisions(class *storagev1.StorageClass) bool {
	return class.Provisioner != "" && class.Provisioner != objects.NoProvisioner
}

// recharge updates the charge of a claim. The charge of a claim with a new volume settles.
func (x *index) recharge(name types.NamespacedName) {
	now, charged := x.chargeOf(name)
	old := x.charges[name]
	if old != nil && charged && old.class == now.class && old.node == now.node && old.bytes == now.bytes {
		return
	}
	if old != nil {
		delete(x.charges, name)
		unlink(x.chargesAt, old.slot, old)
		claim := x.claims[name]
		made := claim != nil && claim.Spec.VolumeName != ""
		x.eachCapacityAt(old.class, old.slot, func(c *capacity) {
			c.charged -= old.bytes
			if made {
				c.settle(old.bytes)
			}
		})
		x.nodes.drop(old.node)
	}
	if charged {
		now.slot = x.nodes.hold(now.node)
		x.charges[name] = &now
		link(x.chargesAt, now.slot, &now)
		x.eachCapacityAt(now.class, now.slot, func(c *capacity) { c.charged += now.bytes })
	}
}

// settle continues to subtract a new volume. [Scheduler.reportSettled] reports its end.
func (c *capacity) settle(bytes int64) {
	now := time.Now()
	until := now.Add(settleTime)
	c.index.settling = append(c.index.settling, settledCapacity{capacity: c, until: until})
	select {
	case c.index.settles <- struct{}{}:
	default:
	}
	kept := c.settling[:0]
	for _, s := range c.settling {
		if now.Before(s.until) {
			kept = append(kept, s)
		}
	}
	c.settling = append(kept, settling{bytes: bytes, until: until})
}

// settledCapacity is a capacity from which something is subtracted until a time.
type settledCapacity struct {
	capacity *capacity
	until    time.Time
}

// settled returns the capacities from which less is subtracted by now, each once, and the time of the next one; zero
// for none. It omits capacities that were published again.
func (x *index) settled(now time.Time) (capacities []*capacity, next time.Time) {
	for len(x.settling) > 0 && !now.Before(x.settling[0].until) {
		c := x.settling[0].capacity
		if x.capacities[c.name] == c && !slices.Contains(capacities, c) {
			capacities = append(capacities, c)
		}
		x.settling = x.settling[1:]
	}
	if len(x.settling) == 0 {
		x.settling = nil
		return capacities, time.Time{}
	}
	return capacities, x.settling[0].until
}

// checksCapacity reports whether the driver of a class publishes its capacity.
func (x *index) checksCapacity(class *storagev1.StorageClass, claim *v1.PersistentVolumeClaim) bool {
	d := x.csiDrivers[volume.DriverOfPluginName(class.Provisioner)]
	if d == nil || d.Spec.StorageCapacity == nil || !*d.Spec.StorageCapacity {
		return false
	}
	_, asks := claim.Spec.Resources.Requests[v1.ResourceStorage]
	return asks
}
