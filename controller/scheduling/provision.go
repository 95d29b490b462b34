package scheduling

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// This file checks the nodes for new volumes and attach limits, and computes their scores.

// provision refuses the nodes on which a claim gets no existing volume and cannot get a new one.
func (p *search) provision() {
	for i := range p.needs {
		n := &p.needs[i]
		if !n.bound && !slices.Contains(p.classes, n.class) {
			p.provisionClass(len(p.classes), n.class)
		}
	}
}

// provisionClass does the work of provision for the claims of one class, which share its capacity.
func (p *search) provisionClass(at int, class *classState) {
	p.classes = append(p.classes, class)
	p.rooms = row(p.rooms, at, p.len())
	p.sums = sized(p.sums, p.len())
	p.fits = sized(p.fits, p.len())
	for i := range p.needs {
		n := &p.needs[i]
		if n.bound || n.class != class || n.reserved != nil {
			continue
		}
		p.provisionClaim(n, p.rooms[at])
	}
}

// provisionClaim refuses the nodes on which a claim can have neither an existing nor a new volume.
func (p *search) provisionClaim(n *need, rooms []int64) {
	provisionable := n.isProvisionable()
	checked := provisionable && p.index.capacities.isChecked(n.class.object, n.claim)
	if checked {
		p.findCapacity(n, rooms)
	}
	var selected int32 = -1
	if n.node != "" {
		if slot, there := p.index.nodes.find(n.node); there {
			selected = slot
		}
	}
	for i := range p.choices[n.at] {
		slot := p.lo + int32(i)
		switch {
		case n.node != "" && slot != selected:
			p.results[i].refuse(SelectedElsewhere, n.at)
		case p.choices[n.at][i].pvState != nil:
		case !provisionable:
			p.results[i].refuse(NoVolume, n.at)
		case n.unmet:
			p.results[i].refuse(NoAttributesClass, n.at)
		case n.class.topologies != nil && !n.class.topologies.has(slot):
			p.results[i].refuse(NoTopology, n.at)
		case n.node != "":
		case checked && p.fits[i] != int32(n.at)+1:
			p.results[i].refuse(NoCapacity, n.at)
		default:
			p.sums[i] = add(p.sums[i], n.request)
		}
	}
	if provisionable {
		p.countNew(n)
	}
}

// add adds sizes; math.MaxInt64 represents all larger sums.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// findCapacity marks the nodes with capacity for a claim, besides what earlier claims of the pod take.
func (p *search) findCapacity(n *need, rooms []int64) {
	s := p.index.capacities.segments[n.class.object.Name]
	if s == nil {
		return
	}
	for slot := p.lo; slot < p.hi && int(slot) < len(s.local); slot++ {
		for _, c := range s.local[slot] {
			p.findRoom(n, c, c.left(p.now), slot, rooms)
		}
	}
	for _, c := range s.wide {
		left := c.left(p.now)
		if c.selector == nil {
			for slot := p.lo; slot < p.hi; slot++ {
				p.findRoom(n, c, left, slot, rooms)
			}
			continue
		}
		for _, slot := range c.selector.within(p.lo, p.hi) {
			p.findRoom(n, c, left, slot, rooms)
		}
	}
}

// findRoom marks a node if one capacity is enough for a claim.
func (p *search) findRoom(n *need, c *capacity, left int64, slot int32, rooms []int64) {
	i := slot - p.lo
	if c.largest <= 0 || n.request > c.largest || n.request > left-min(p.sums[i], left) {
		return
	}
	p.fits[i] = int32(n.at) + 1
	rooms[i] = max(rooms[i], c.known)
}

// checkDisks refuses the nodes whose pods use inline disks that the pod cannot share.
func (p *search) checkDisks() {
	for i := range p.results {
		if p.results[i].preemptable() && len(p.index.diskConflicts(p.lo+int32(i), p.disks, p.key)) > 0 {
			p.results[i].refuse(DiskConflict, len(p.needs))
		}
	}
}

// driverAt returns the index of a driver.
func (p *search) driverAt(d *driver) int {
	at := slices.Index(p.drivers, d)
	if at < 0 {
		at = len(p.drivers)
		p.drivers, p.base = append(p.drivers, d), append(p.base, 0)
		p.counts = row(p.counts, at, p.len())
	}
	return at
}

// count counts a volume that the pod has on every node, except where it is in use already.
func (p *search) count(a attached) {
	if a.driver == nil || slices.Contains(p.attached, a) {
		return
	}
	p.attached = append(p.attached, a)
	at := p.driverAt(a.driver)
	p.base[at]++
	for _, u := range a.driver.used[a.handle] {
		if u.slot >= p.lo && u.slot < p.hi {
			p.counts[at][u.slot-p.lo]--
		}
	}
}

// countNew counts the new volume of a claim on each node that would get it, for the driver that provisions it.
func (p *search) countNew(n *need) {
	d := p.index.drivers[volume.DriverOfPluginName(n.class.object.Provisioner)]
	if d == nil {
		return
	}
	at := p.driverAt(d)
	counts := p.counts[at]
	for i := range p.choices[n.at] {
		if p.choices[n.at][i].pvState == nil {
			counts[i]++
		}
	}
	for _, u := range d.used[handleOf(n.name)] {
		if u.slot >= p.lo && u.slot < p.hi && p.choices[n.at][u.slot-p.lo].pvState == nil {
			counts[u.slot-p.lo]--
		}
	}
}

// chosenInUse returns the number of a driver's existing volumes that claims get on a node and that are in use there
// already.
func (p *search) chosenInUse(d *driver, i int) int32 {
	var there int32
	for at := range p.needs {
		if p.needs[at].bound {
			continue
		}
		v := p.choices[at][i]
		if v.driver == d && !slices.Contains(p.attached, v.attached) && d.hasOn(v.attached.handle, p.lo+int32(i)) {
			there++
		}
	}
	return there
}

// countChosen counts existing volumes on the nodes on which claims get them, also those that are in use there.
func (p *search) countChosen() {
	for at := range p.needs {
		n := &p.needs[at]
		if n.bound {
			continue
		}
		for i := range p.choices[at] {
			d := p.choices[at][i].driver
			if d == nil || len(d.limits) == 0 || !p.results[i].preemptable() || slices.Contains(p.attached, p.choices[at][i].attached) {
				continue
			}
			p.counts[p.driverAt(d)][i]++
		}
	}
}

// checkLimits refuses the nodes to which a driver cannot attach the additional volumes.
func (p *search) checkLimits() {
	p.countChosen()
	for at, d := range p.drivers {
		if len(d.limits) == 0 {
			continue
		}
		for i := range p.results {
			slot := p.lo + int32(i)
			limit, added := d.limit(slot), p.base[at]+p.counts[at][i]
			if limit == noLimit || added <= 0 || d.count(slot)+added <= limit {
				continue
			}
			v := &p.results[i]
			if added -= p.chosenInUse(d, i); v.preemptable() && added > 0 && d.count(slot)+added > limit {
				p.limit(v, at, d.count(slot), added, limit)
			}
		}
	}
}

// limit refuses a node because of a driver, of which it has inUse volumes. The first driver counts, unless another one
// cannot attach the added volumes even to an empty node.
func (p *search) limit(v *nodeResult, driver int, inUse, added, limit int32) {
	if v.reasons&(1<<AttachLimit) == 0 || added > limit {
		v.driver, v.inUse, v.limit, v.never = int16(driver), inUse, limit, added > limit
	}
	v.refuse(AttachLimit, len(p.needs))
}

// setScores sets the score of each node: the mean, over the classes, of the used share of the claims' volumes.
func (p *search) setScores() {
	for i := range p.results {
		if p.results[i].first == 0 {
			p.results[i].score = p.scoreOf(i)
		}
	}
}

func (p *search) scoreOf(i int) uint8 {
	var used, classes float64
	for at, class := range p.classes {
		requested, room := p.usage(class, at, i)
		if room <= 0 {
			continue
		}
		used += min(1, requested/room)
		classes++
	}
	if classes == 0 {
		return 0
	}
	score := used / classes * 100
	if p.policy == MostCapacityLeft {
		score = 100 - score
	}
	return uint8(math.Round(score))
}

// usage returns the sizes that the claims of a class request on a node, and the sizes from which they get them.
func (p *search) usage(class *classState, at, i int) (requested, room float64) {
	made := false
	for j := range p.needs {
		n := &p.needs[j]
		if n.bound || n.class != class {
			continue
		}
		choice := &p.choices[j][i]
		switch {
		case choice.pvState != nil:
			requested, room = requested+float64(n.request), room+float64(choice.bytes)
		case p.rooms[at][i] > 0:
			requested, made = requested+float64(n.request), true
		}
	}
	if made {
		room += float64(p.rooms[at][i])
	}
	return requested, room
}

// claimNames returns the claims and their known volumes, for messages.
func (p *search) claimNames() []claimName {
	names := make([]claimName, 0, len(p.needs))
	for i := range p.needs {
		n := &p.needs[i]
		c := claimName{name: n.name, volume: n.volumeName(), attributes: objects.Deref(n.claim.Spec.VolumeAttributesClassName)}
		if n.class != nil {
			c.class = n.class.object.Name
		}
		names = append(names, c)
	}
	return names
}

// podsWith returns the pods on a node that use volumes of a driver.
func (x *index) podsWith(slot int32, d *driver, except podKey) []types.NamespacedName {
	var pods []types.NamespacedName
	for key, p := range x.nodes.entries[slot].pods {
		if key != except && slices.ContainsFunc(p.counts, func(a attached) bool { return a.driver == d }) {
			pods = append(pods, key.name)
		}
	}
	return pods
}
