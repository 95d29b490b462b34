package scheduling

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// pvState is the last known version of a volume, with what follows from it.
type pvState struct {
	object   *v1.PersistentVolume
	size     int64     // in bytes
	affinity *selector // the nodes that its node affinity allows; nil: all
	zones    *selector // the nodes that its zone labels allow; nil: all
	attached attached  // its driver is nil for a volume that is not CSI
	bucket   *bucket   // nil unless it is free
}

// isMultiWriter reports whether pods on several nodes may use the volume at once.
func (v *pvState) isMultiWriter() bool {
	return volume.IsMultiAttachAllowed(volume.NewSpecFromPersistentVolume(v.object, false))
}

// compareVolumes orders volumes by size, then by the number of access modes, then by name.
func compareVolumes(a, b *pvState) int {
	if c := cmp.Compare(a.size, b.size); c != 0 {
		return c
	}
	sizeA, sizeB := fit.Capacity(a.object), fit.Capacity(b.object)
	return cmp.Or(
		sizeA.Cmp(sizeB),
		cmp.Compare(len(a.object.Spec.AccessModes), len(b.object.Spec.AccessModes)),
		strings.Compare(a.object.Name, b.object.Name),
	)
}

// group holds the free volumes from which a claim can choose. They have one class, attributes class and volume mode.
type group struct {
	key     fit.Group
	buckets map[*selector]*bucket
	local   []localBuckets // by slot: the volumes that only this node can have
	wide    []*bucket      // the other volumes
}

// localBuckets are the buckets of the volumes that only one node can have. There is rarely more than one.
type localBuckets struct {
	first *bucket
	head  free // the smallest volume of first; it is here because every search looks at it
	more  []*bucket
}

// bucket holds the free volumes of a group that the same nodes can have, in the order of compareVolumes.
type bucket struct {
	group    *group
	selector *selector
	volumes  []free
}

// free is a free volume in a bucket, with copies of the fields that most searches read.
type free struct {
	bytes int64
	modes modes
	zoned bool // it has zone labels
	*pvState
	driver *driver // the driver that counts it; nil for none
}

func newFree(v *pvState) free {
	return free{bytes: v.size, modes: modesOf(v.object.Spec.AccessModes), zoned: v.zones != nil, pvState: v, driver: v.attached.driver}
}

// modes is a set of access modes, one bit each.
type modes uint8

const otherMode modes = 1 << 7

func modesOf(all []v1.PersistentVolumeAccessMode) modes {
	var bits modes
	for _, mode := range all {
		switch mode {
		case v1.ReadWriteOnce:
			bits |= 1
		case v1.ReadOnlyMany:
			bits |= 2
		case v1.ReadWriteMany:
			bits |= 4
		case v1.ReadWriteOncePod:
			bits |= 8
		default:
			bits |= otherMode
		}
	}
	return bits
}

func (g *group) localAt(slot int32) *localBuckets {
	for int(slot) >= len(g.local) {
		g.local = append(g.local, localBuckets{})
	}
	return &g.local[slot]
}

// place implements member.
func (b *bucket) place() {
	slot, single := b.selector.single()
	if !single {
		b.group.wide = append(b.group.wide, b)
		return
	}
	at := b.group.localAt(slot)
	if at.first == nil {
		at.first = b
		b.setHead()
		return
	}
	at.more = append(at.more, b)
}

// unplace implements member.
func (b *bucket) unplace() {
	slot, single := b.selector.single()
	if !single {
		b.group.wide = without(b.group.wide, b)
		return
	}
	at := &b.group.local[slot]
	if at.first != b {
		at.more = without(at.more, b)
		return
	}
	at.first, at.head = nil, free{}
	if last := len(at.more) - 1; last >= 0 {
		at.first, at.more = at.more[last], at.more[:last]
		at.first.setHead()
	}
}

// setHead copies the smallest volume of the bucket to the head of its node, if the bucket is the first one there.
func (b *bucket) setHead() {
	slot, single := b.selector.single()
	if single && b.group.local[slot].first == b && len(b.volumes) > 0 {
		b.group.local[slot].head = b.volumes[0]
	}
}

func without[T comparable](all []T, one T) []T {
	if at := slices.Index(all, one); at >= 0 {
		return slices.Delete(all, at, at+1)
	}
	return all
}

// find returns the index of a volume in the bucket, or the index at which it belongs.
func (b *bucket) find(v *pvState) (int, bool) {
	return slices.BinarySearchFunc(b.volumes, v, func(f free, v *pvState) int { return compareVolumes(f.pvState, v) })
}

// addFree adds a volume to the free ones.
func (x *index) addFree(v *pvState) {
	key := fit.GroupOfVolume(v.object)
	g, there := x.groups[key]
	if !there {
		g = &group{key: key, buckets: map[*selector]*bucket{}}
		x.groups[key] = g
	}
	b, there := g.buckets[v.affinity]
	if !there {
		b = &bucket{group: g, selector: v.affinity}
		g.buckets[v.affinity] = b
		b.place()
		if v.affinity != nil {
			v.affinity.members[b] = true
		}
	}
	at, _ := b.find(v)
	b.volumes = slices.Insert(b.volumes, at, newFree(v))
	b.setHead()
	v.bucket = b
}

// removeFree undoes addFree.
func (x *index) removeFree(v *pvState) {
	b := v.bucket
	v.bucket = nil
	if at, found := b.find(v); found {
		b.volumes = slices.Delete(b.volumes, at, at+1)
	}
	if len(b.volumes) > 0 {
		b.setHead()
		return
	}
	b.unplace()
	if b.selector != nil {
		delete(b.selector.members, b)
	}
	g := b.group
	delete(g.buckets, b.selector)
	if len(g.buckets) == 0 {
		delete(x.groups, g.key)
	}
}

// isFree reports whether a claim that the volume does not name may get the volume.
func (x *index) isFree(v *pvState) bool {
	pv := v.object
	return len(x.reservedBy[pv.Name]) == 0 && pv.Spec.ClaimRef == nil && pv.DeletionTimestamp == nil && fit.Unused(pv) && !objects.IsUnfilled(pv)
}

// setFree updates the place of a changed volume among the free ones.
func (x *index) setFree(v *pvState) {
	switch {
	case x.isFree(v) && v.bucket == nil:
		x.addFree(v)
	case !x.isFree(v) && v.bucket != nil:
		x.removeFree(v)
	}
}

// refreshVolume updates the state of a volume to its last known version.
func (x *index) refreshVolume(name string, pv *v1.PersistentVolume) {
	old := x.volumes[name]
	if old == nil && pv == nil {
		return
	}
	var now *pvState
	if pv != nil {
		now = x.newVolume(pv)
	}
	affected := old == nil || now == nil || old.attached != now.attached
	if old != nil {
		if old.bucket != nil {
			x.removeFree(old)
		}
		x.forgetReference(old)
		delete(x.volumes, name)
	}
	if now != nil {
		x.volumes[name] = now
		x.noteReference(now)
		x.setFree(now)
	}
	if old != nil {
		x.selectors.release(old.affinity)
		x.selectors.release(old.zones)
	}
	if affected {
		x.recountVolume(name)
	}
	if now == nil {
		x.dropReservationsOf(name)
	}
}

func (x *index) newVolume(pv *v1.PersistentVolume) *pvState {
	v := &pvState{object: pv, size: fit.Bytes(fit.Capacity(pv)), affinity: x.selectors.ofVolume(pv), zones: x.selectors.ofZones(pv)}
	if csi := pv.Spec.CSI; csi != nil {
		v.attached = attached{driver: x.driver(csi.Driver), handle: csi.VolumeHandle}
	}
	return v
}

// noteReference records the claim that a volume names.
func (x *index) noteReference(v *pvState) {
	if v.object.Spec.ClaimRef != nil {
		name := objects.ClaimNameOf(v.object)
		x.naming[name] = append(x.naming[name], v)
	}
}

func (x *index) forgetReference(v *pvState) {
	if v.object.Spec.ClaimRef == nil {
		return
	}
	name := objects.ClaimNameOf(v.object)
	x.naming[name] = without(x.naming[name], v)
	if len(x.naming[name]) == 0 {
		delete(x.naming, name)
	}
}

// recountVolume counts again where a volume is used: by pods, through their claims, and by attachments.
func (x *index) recountVolume(name string) {
	for claim := range x.claimsOf[name] {
		x.recountClaim(claim)
	}
	for claim := range x.reservedBy[name] {
		x.recountClaim(claim)
	}
	for at := range x.attachmentsOf[name] {
		x.recountAttachment(at)
	}
}
