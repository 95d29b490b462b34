package scheduling

import (
	"log/slog"
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

// capacities holds the free capacity of each segment, and the volumes in progress that take part of it. The scheduler's lock guards it.
type capacities struct {
	logger    *slog.Logger
	nodes     *nodes
	selectors *selectors

	drivers       map[string]*storagev1.CSIDriver // by name
	byName        map[types.NamespacedName]*capacity
	segments      map[string]*segments // the capacities of a class
	allocations   map[types.NamespacedName]*allocation
	allocationsAt map[int32]map[*allocation]bool // by slot
	expiries      []expiry                       // of recent volumes, the next first
	expiryAdded   chan struct{}                  // holds one value after an addition to expiries
}

func newCapacities(logger *slog.Logger, n *nodes, s *selectors) *capacities {
	return &capacities{
		logger: logger, nodes: n, selectors: s,
		drivers: map[string]*storagev1.CSIDriver{}, byName: map[types.NamespacedName]*capacity{}, segments: map[string]*segments{},
		allocations: map[types.NamespacedName]*allocation{}, allocationsAt: map[int32]map[*allocation]bool{}, expiryAdded: make(chan struct{}, 1),
	}
}

// refreshDriver updates a driver from its last version in the mirror.
func (k *capacities) refreshDriver(name string, driver *storagev1.CSIDriver) {
	if driver == nil {
		delete(k.drivers, name)
		return
	}
	k.drivers[name] = driver
}

// capacity is the free capacity of one segment for one class: the published capacity, less the volumes in progress.
type capacity struct {
	all       *capacities
	name      types.NamespacedName
	uid       types.UID
	version   string
	class     string
	selector  *selector // nil: all nodes
	largest   int64     // of one volume
	total     int64     // of all volumes together
	known     int64     // the published capacity, 0 when there is none
	allocated int64     // for volumes in progress
	recent    []recentVolume
}

// recentVolume is a new volume that the published capacity may still include.
type recentVolume struct {
	bytes int64
	until time.Time
}

// recentTime is the longest time for which a new volume is subtracted, if its driver does not publish its capacity
// again.
const recentTime = time.Minute

// left returns the free capacity: of all volumes together, and of one volume.
func (c *capacity) left(now time.Time) int64 {
	left := c.total - c.allocated
	for _, s := range c.recent {
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
	c.all.segments[c.class].place(c)
	c.all.allocateAnew(c)
}

// unplace implements member.
func (c *capacity) unplace() { c.all.segments[c.class].unplace(c) }

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

// refresh updates a capacity from its last version in the mirror. It no longer subtracts the recent
// volumes that were made before. It reports whether the free capacity has grown.
func (k *capacities) refresh(name types.NamespacedName, object *storagev1.CSIStorageCapacity) bool {
	old := k.byName[name]
	if old != nil && object != nil && object.UID == old.uid && object.ResourceVersion == old.version {
		return false
	}
	now := k.newCapacity(name, object)
	if old != nil {
		k.remove(old)
	}
	if now != nil {
		k.add(now)
	}
	return now != nil && (old == nil || now.exceeds(old))
}

// newCapacity returns the capacity of an object, nil if no node has it.
func (k *capacities) newCapacity(name types.NamespacedName, object *storagev1.CSIStorageCapacity) *capacity {
	if object == nil || object.NodeTopology == nil {
		return nil
	}
	selector, err := k.selectors.ofSegment(object.NodeTopology)
	if err != nil {
		k.logger.Warn("the topology of a capacity is malformed: no node has it", "capacity", name.String(), "error", err)
		return nil
	}
	c := &capacity{all: k, name: name, uid: object.UID, version: object.ResourceVersion, class: object.StorageClassName, selector: selector}
	c.largest, c.total, c.known = limitsOf(object)
	return c
}

// exceeds reports whether a pod may fit that did not fit an older version of the capacity.
func (c *capacity) exceeds(old *capacity) bool {
	now := time.Now()
	return c.largest > old.largest || c.left(now) > old.left(now) || c.class != old.class || c.selector != old.selector
}

func (k *capacities) add(c *capacity) {
	if k.segments[c.class] == nil {
		k.segments[c.class] = &segments{}
	}
	k.byName[c.name] = c
	k.segments[c.class].count++
	if c.selector != nil {
		c.selector.members[c] = true
	}
	c.place()
}

func (k *capacities) remove(c *capacity) {
	c.unplace()
	if c.selector != nil {
		delete(c.selector.members, c)
	}
	k.selectors.release(c.selector)
	delete(k.byName, c.name)
	k.segments[c.class].count--
	if k.segments[c.class].count == 0 {
		delete(k.segments, c.class)
	}
}

// allocation is the part of a node's capacity that a claim takes while its volume is in progress.
type allocation struct {
	class string
	node  string
	slot  int32
	bytes int64
}

// allocateAnew subtracts all volumes in progress in a capacity's segment.
func (k *capacities) allocateAnew(c *capacity) {
	c.allocated = 0
	if slot, single := c.selector.single(); single {
		c.addAllocations(k.allocationsAt[slot])
		return
	}
	for slot, allocations := range k.allocationsAt {
		if c.selector.has(slot) {
			c.addAllocations(allocations)
		}
	}
}

func (c *capacity) addAllocations(allocations map[*allocation]bool) {
	for a := range allocations {
		if a.class == c.class {
			c.allocated += a.bytes
		}
	}
}

// eachAt calls do with the capacities of a class on the node of a slot.
func (k *capacities) eachAt(class string, slot int32, do func(c *capacity)) {
	s := k.segments[class]
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

// allocationOf returns the present allocation of a claim. It is false if the claim has a volume, or if no claim annotation and no
// reservation names a node for a new volume.
func (x *index) allocationOf(name types.NamespacedName) (allocation, bool) {
	claim := x.claims[name]
	if claim == nil || claim.Spec.VolumeName != "" {
		return allocation{}, false
	}
	node := claim.Annotations[objects.AnnSelectedNode]
	if reserved := x.claimReservations[name]; reserved != nil {
		node = reserved.node
		if reserved.volume != "" {
			node = ""
		}
	}
	class := x.classes[objects.ClassOf(claim)]
	if node == "" || class == nil || !provisions(class.object) {
		return allocation{}, false
	}
	return allocation{class: class.object.Name, node: node, bytes: fit.RequestedBytes(claim)}, true
}

// provisions reports whether the class can have new volumes.
func provisions(class *storagev1.StorageClass) bool {
	return class.Provisioner != "" && class.Provisioner != objects.NoProvisioner
}

// updateAllocation updates the allocation of a claim. If the claim has its new volume, the volume is subtracted for a while longer.
func (x *index) updateAllocation(name types.NamespacedName) {
	claim := x.claims[name]
	now, allocated := x.allocationOf(name)
	if !allocated {
		if claim != nil && claim.Spec.VolumeName != "" {
			x.capacities.finish(name)
		} else {
			x.capacities.release(name)
		}
		return
	}
	x.capacities.allocate(name, now)
}

// allocate sets the allocation of a claim.
func (k *capacities) allocate(name types.NamespacedName, now allocation) {
	old := k.allocations[name]
	if old != nil && old.class == now.class && old.node == now.node && old.bytes == now.bytes {
		return
	}
	k.release(name)
	now.slot = k.nodes.acquire(now.node)
	k.allocations[name] = &now
	link(k.allocationsAt, now.slot, &now)
	k.eachAt(now.class, now.slot, func(c *capacity) { c.allocated += now.bytes })
}

// release ends the allocation of a claim, if it has one.
func (k *capacities) release(name types.NamespacedName) {
	old := k.allocations[name]
	if old == nil {
		return
	}
	delete(k.allocations, name)
	unlink(k.allocationsAt, old.slot, old)
	k.eachAt(old.class, old.slot, func(c *capacity) { c.allocated -= old.bytes })
	k.nodes.release(old.node)
}

// finish ends the allocation of a claim whose volume was made. Its capacities continue to subtract the volume for recentTime at most.
func (k *capacities) finish(name types.NamespacedName) {
	if old := k.allocations[name]; old != nil {
		k.eachAt(old.class, old.slot, func(c *capacity) { c.addRecent(old.bytes) })
		k.release(name)
	}
}

// addRecent continues to subtract a new volume. [Scheduler.reportExpired] reports its end.
func (c *capacity) addRecent(bytes int64) {
	now := time.Now()
	until := now.Add(recentTime)
	c.all.expiries = append(c.all.expiries, expiry{capacity: c, until: until})
	select {
	case c.all.expiryAdded <- struct{}{}:
	default:
	}
	kept := c.recent[:0]
	for _, s := range c.recent {
		if now.Before(s.until) {
			kept = append(kept, s)
		}
	}
	c.recent = append(kept, recentVolume{bytes: bytes, until: until})
}

// expiry is the end of the subtraction of a recent volume from a capacity.
type expiry struct {
	capacity *capacity
	until    time.Time
}

// expired returns the capacities from which less is subtracted by now, each once, and the time of the next one; zero
// for none. It omits capacities that were published again.
func (k *capacities) expired(now time.Time) (capacities []*capacity, next time.Time) {
	for len(k.expiries) > 0 && !now.Before(k.expiries[0].until) {
		c := k.expiries[0].capacity
		if k.byName[c.name] == c && !slices.Contains(capacities, c) {
			capacities = append(capacities, c)
		}
		k.expiries = k.expiries[1:]
	}
	if len(k.expiries) == 0 {
		k.expiries = nil
		return capacities, time.Time{}
	}
	return capacities, k.expiries[0].until
}

// isChecked reports whether the driver of a class publishes its capacity.
func (k *capacities) isChecked(class *storagev1.StorageClass, claim *v1.PersistentVolumeClaim) bool {
	d := k.drivers[volume.DriverOfPluginName(class.Provisioner)]
	if d == nil || d.Spec.StorageCapacity == nil || !*d.Spec.StorageCapacity {
		return false
	}
	_, asks := claim.Spec.Resources.Requests[v1.ResourceStorage]
	return asks
}
