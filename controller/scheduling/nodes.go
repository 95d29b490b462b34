package scheduling

import (
	"slices"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodes has a slot for each node: the facts about nodes are in slices by slot. A missing node keeps its slot as long as
// pods, attachments or its CSINode name it.
type nodes struct {
	entries []nodeEntry
	slots   map[string]int32
	vacant  []int32
	labeled map[label][]int32 // the slots of the nodes with a label, rising
	names   []string          // by slot, "" where no node is; not changed while shared
	shared  atomic.Bool
}

// nodeEntry is the known state of the node of a slot.
type nodeEntry struct {
	object  *v1.Node // nil if it does not exist
	labels  []label
	csiNode *storagev1.CSINode
	pods    map[podKey]*pod // members that depend on the slot
	users   int             // the number of objects that name the node
}

func newNodes() *nodes {
	return &nodes{slots: map[string]int32{}, labeled: map[label][]int32{}}
}

// acquire returns the slot of a node, and keeps the slot until release is called.
func (n *nodes) acquire(name string) int32 {
	slot, there := n.slots[name]
	if !there {
		slot = n.vacantSlot()
		n.slots[name] = slot
	}
	n.entries[slot].users++
	return slot
}

func (n *nodes) vacantSlot() int32 {
	if last := len(n.vacant) - 1; last >= 0 {
		slot := n.vacant[last]
		n.vacant = n.vacant[:last]
		return slot
	}
	n.entries = append(n.entries, nodeEntry{pods: map[podKey]*pod{}})
	n.names = append(n.names, "") // a reader of shared names sees no later names
	return int32(len(n.entries) - 1)
}

// release undoes one acquire.
func (n *nodes) release(name string) {
	slot := n.slots[name]
	n.entries[slot].users--
	if n.entries[slot].users == 0 {
		delete(n.slots, name)
		n.vacant = append(n.vacant, slot)
	}
}

// find returns the slot of an existing node.
func (n *nodes) find(name string) (int32, bool) {
	slot, known := n.slots[name]
	return slot, known && n.entries[slot].object != nil
}

// setName assigns a slot to an existing node, or to none.
func (n *nodes) setName(slot int32, name string) {
	if n.names[slot] == name {
		return
	}
	if n.shared.Swap(false) {
		n.names = slices.Clone(n.names)
	}
	n.names[slot] = name
}

// set stores the node of a name, nil for none, and returns the labels that it has lost and gained. A new node gains its
// name, and one that is gone loses it.
func (n *nodes) set(slot int32, node *v1.Node) (lost, gained []label) {
	e := &n.entries[slot]
	var now []label
	if node != nil {
		now = labelsOfNode(node)
	}
	lost, gained = labelsOnlyIn(e.labels, now), labelsOnlyIn(now, e.labels)
	for _, l := range lost {
		n.unlabel(slot, l)
	}
	for _, l := range gained {
		at, _ := slices.BinarySearch(n.labeled[l], slot)
		n.labeled[l] = slices.Insert(n.labeled[l], at, slot)
	}
	e.object, e.labels = node, now
	return lost, gained
}

// labelsOnlyIn returns the labels of a that b lacks. Both are sorted by key.
func labelsOnlyIn(a, b []label) []label {
	var only []label
	for _, l := range a {
		at, found := slices.BinarySearchFunc(b, l.key, func(l label, key string) int { return strings.Compare(l.key, key) })
		if !found || b[at].value != l.value {
			only = append(only, l)
		}
	}
	return only
}

func (n *nodes) unlabel(slot int32, l label) {
	at, found := slices.BinarySearch(n.labeled[l], slot)
	if !found {
		return
	}
	n.labeled[l] = slices.Delete(n.labeled[l], at, at+1)
	if len(n.labeled[l]) == 0 {
		delete(n.labeled, l)
	}
}

// labelsOfNode returns the sorted name and labels of a node.
func labelsOfNode(node *v1.Node) []label {
	of := make([]label, 0, len(node.Labels)+1)
	of = append(of, label{nameKey, node.Name})
	for key, value := range node.Labels {
		of = append(of, label{key, value})
	}
	slices.SortFunc(of, func(a, b label) int { return strings.Compare(a.key, b.key) })
	return of
}

// share returns the names by slot. They are not changed any more.
func (n *nodes) share() []string {
	n.shared.Store(true)
	return n.names
}

// refreshNode updates a node from its last version in the mirror, and reports whether more pods may fit there.
func (x *index) refreshNode(name string, node *v1.Node) bool {
	slot, known := x.nodes.find(name)
	if !known && node == nil {
		return false
	}
	if !known {
		slot = x.nodes.acquire(name)
	}
	lost, gained := x.nodes.set(slot, node)
	x.nodes.setName(slot, nameOf(node))
	changed := len(lost)+len(gained) > 0
	if changed {
		x.selectors.nodeChanged(slot, lost, gained)
	}
	if node == nil {
		x.nodes.release(name)
	}
	return changed && node != nil
}

func nameOf(node *v1.Node) string {
	if node == nil {
		return ""
	}
	return node.Name
}

// refreshCSINode updates the drivers of a node from its CSINode, and returns those with a higher limit.
func (x *index) refreshCSINode(name string, csiNode *storagev1.CSINode) (raised []string) {
	slot, known := x.nodes.slots[name]
	var old *storagev1.CSINode
	if known {
		old = x.nodes.entries[slot].csiNode
	}
	if old == nil && csiNode == nil {
		return nil
	}
	if old == nil {
		slot = x.nodes.acquire(name)
	}
	x.nodes.entries[slot].csiNode = csiNode
	before, now := limitsOn(old), limitsOn(csiNode)
	for driver, limit := range before {
		if after, limited := now[driver]; !limited || after > limit {
			raised = append(raised, driver)
		}
		x.driver(driver).setLimit(slot, noLimit)
	}
	for driver, limit := range now {
		x.driver(driver).setLimit(slot, limit)
	}
	if csiNode == nil {
		x.nodes.release(name)
	}
	return raised
}

// limitsOn returns the limits of a node by driver. A missing driver has no limit.
func limitsOn(csiNode *storagev1.CSINode) map[string]int32 {
	if csiNode == nil {
		return nil
	}
	limits := map[string]int32{}
	for _, d := range csiNode.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = *d.Allocatable.Count
		}
	}
	return limits
}

// noLimit is the limit of a node if its driver reports none.
const noLimit int32 = -1

// driver is the state of a CSI driver on all nodes, by slot.
type driver struct {
	name   string
	limits []int32
	counts []int32 // distinct volumes that are in use there
	used   map[string][]use
}

// use counts the users of a volume on one node: pods and attachments.
type use struct {
	slot  int32
	users int32
}

// driver returns the driver of a name.
func (x *index) driver(name string) *driver {
	d, there := x.drivers[name]
	if !there {
		d = &driver{name: name, used: map[string][]use{}}
		x.drivers[name] = d
	}
	return d
}

func (d *driver) setLimit(slot, limit int32) {
	if limit == noLimit && int(slot) >= len(d.limits) {
		return
	}
	for int(slot) >= len(d.limits) {
		d.limits = append(d.limits, noLimit)
	}
	d.limits[slot] = limit
}

// limit returns the attach limit of the node of a slot.
func (d *driver) limit(slot int32) int32 {
	if int(slot) >= len(d.limits) {
		return noLimit
	}
	return d.limits[slot]
}

// count returns the number of volumes on the node of a slot.
func (d *driver) count(slot int32) int32 {
	if int(slot) >= len(d.counts) {
		return 0
	}
	return d.counts[slot]
}

// add counts a user of a volume on a node.
func (d *driver) add(handle string, slot int32) {
	for int(slot) >= len(d.counts) {
		d.counts = append(d.counts, 0)
	}
	uses := d.used[handle]
	at, found := findUse(uses, slot)
	if found {
		uses[at].users++
		return
	}
	d.used[handle] = slices.Insert(uses, at, use{slot: slot, users: 1})
	d.counts[slot]++
}

// remove undoes one add.
func (d *driver) remove(handle string, slot int32) {
	uses := d.used[handle]
	at, found := findUse(uses, slot)
	if !found {
		return
	}
	uses[at].users--
	if uses[at].users > 0 {
		return
	}
	d.counts[slot]--
	uses = slices.Delete(uses, at, at+1)
	if len(uses) == 0 {
		delete(d.used, handle)
		return
	}
	d.used[handle] = uses
}

// hasOn reports whether a volume is in use on the node of a slot.
func (d *driver) hasOn(handle string, slot int32) bool {
	_, found := findUse(d.used[handle], slot)
	return found
}

func findUse(uses []use, slot int32) (int, bool) {
	return slices.BinarySearchFunc(uses, slot, func(u use, slot int32) int { return int(u.slot) - int(slot) })
}

// attached identifies a volume for attach limits: by its PersistentVolume or, before that exists, by its claim.
type attached struct {
	driver *driver
	handle string
}

// podKey identifies a pod; earlier pods of the same name differ.
type podKey struct {
	name types.NamespacedName
	uid  types.UID
}
