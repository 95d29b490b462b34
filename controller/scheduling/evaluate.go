package scheduling

import (
	"slices"
	"sort"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// search is the search for the nodes of one pod. It covers the nodes with the slots from lo to before hi: all nodes, or
// one. Index 0 of its slices by slot stands for slot lo.
type search struct {
	index   *index
	pod     *v1.Pod
	key     podKey
	needs   []need
	disks   []v1.Volume
	lo, hi  int32
	results []nodeResult
	users   []types.NamespacedName
	policy  ScorePolicy
	now     time.Time
	*scratch
}

// scratch is memory that searches reuse.
type scratch struct {
	choices  [][]free  // by need and slot: the existing volume that the need gets
	fits     []int32   // by slot: 1 + the need for which there is capacity
	rooms    [][]int64 // by class and slot: the published capacity
	sums     []int64   // by slot: the capacity of a class that earlier claims of the pod use
	classes  []*classState
	drivers  []*driver
	base     []int32   // by driver: the number of volumes that are new on every node
	counts   [][]int32 // by driver and slot: the number of volumes that are new on that node, beside base
	attached []attached
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// sized returns a slice of n zeros. It reuses the memory of old if that is large enough.
func sized[T any](old []T, n int) []T {
	if cap(old) < n {
		return make([]T, n, n+n/4)
	}
	old = old[:n]
	clear(old)
	return old
}

// row makes row i of rows a slice of n zeros, as sized does, and returns rows.
func row[T any](rows [][]T, i, n int) [][]T {
	for i >= len(rows) {
		rows = append(rows, nil)
	}
	rows[i] = sized(rows[i], n)
	return rows
}

// newSearch prepares a search of the nodes with the slots from lo to before hi. The caller must call done at the end.
func (x *index) newSearch(p *v1.Pod, lo, hi int32, policy ScorePolicy) (*search, error) {
	needs, err := x.needsOf(p)
	if err != nil {
		return nil, err
	}
	s, _ := scratches.Get().(*scratch)
	pl := &search{
		index: x, pod: p, key: keyOfPod(p), needs: needs, disks: disksOf(p), lo: lo, hi: hi,
		results: make([]nodeResult, hi-lo), policy: policy, now: time.Now(), scratch: s,
	}
	s.classes, s.drivers, s.base, s.attached = s.classes[:0], s.drivers[:0], s.base[:0], s.attached[:0]
	return pl, nil
}

func (p *search) release() {
	for _, choices := range p.choices {
		clear(choices)
	}
	scratches.Put(p.scratch)
	p.scratch = nil
}

func (p *search) len() int { return int(p.hi - p.lo) }

// run fills in the results.
func (p *search) run() {
	for i := range p.needs {
		n := &p.needs[i]
		p.conflicts(n)
		if n.bound {
			p.placeBound(n)
			continue
		}
		p.choices = row(p.choices, i, p.len())
		p.choose(n)
	}
	p.provision()
	if len(p.disks) > 0 {
		p.checkDisks()
	}
	p.checkLimits()
	if p.waiting() {
		p.setScores()
	}
}

// waiting reports whether a claim of the pod is still to be bound.
func (p *search) waiting() bool {
	return len(p.needs) > 0 && !p.needs[len(p.needs)-1].bound
}

func (p *search) refuseAll(reason Reason, n *need) {
	for i := range p.results {
		p.results[i].refuse(reason, n.at)
	}
}

// refuseOthers refuses the nodes that a selector does not select. A nil selector selects all nodes.
func (p *search) refuseOthers(s *selector, reason Reason, n *need) {
	if s == nil {
		return
	}
	at := p.lo
	for _, slot := range s.within(p.lo, p.hi) {
		for ; at < slot; at++ {
			p.results[at-p.lo].refuse(reason, n.at)
		}
		at = slot + 1
	}
	for ; at < p.hi; at++ {
		p.results[at-p.lo].refuse(reason, n.at)
	}
}

// placeBound refuses the nodes that cannot have the volume of a bound claim.
func (p *search) placeBound(n *need) {
	if n.volume == nil {
		p.refuseAll(VolumeMissing, n)
		return
	}
	p.refuseOthers(n.volume.affinity, NodeAffinity, n)
	p.refuseOthers(n.volume.zones, Zone, n)
	p.count(n.volume.attached)
}

// conflicts refuses the nodes on which other pods that use the claim exclude this one.
func (p *search) conflicts(n *need) {
	users := p.index.podsOf[n.name]
	if len(users) == 0 || len(users) == 1 && users[p.key] != nil {
		return
	}
	if slices.Contains(n.claim.Spec.AccessModes, v1.ReadWriteOncePod) {
		p.noteUsers(users)
		p.refuseAll(InUseByPod, n)
		return
	}
	v := n.volume
	if v == nil {
		v = n.reserved
	}
	if v == nil || v.isMultiWriter() {
		return
	}
	p.noteUsers(users)
	only, several := p.slotOf(users)
	for i := range p.results {
		if several || p.lo+int32(i) != only {
			p.results[i].refuse(InUseOnOtherNode, n.at)
		}
	}
}

// slotOf returns the slot of the other pods that use a claim, or several if they are on more than one.
func (p *search) slotOf(users map[podKey]*pod) (only int32, several bool) {
	only = -1
	for key, user := range users {
		if key == p.key {
			continue
		}
		if only >= 0 && user.slot != only {
			return 0, true
		}
		only = user.slot
	}
	return only, false
}

func (p *search) noteUsers(users map[podKey]*pod) {
	for key := range users {
		if key != p.key && !slices.Contains(p.users, key.name) {
			p.users = append(p.users, key.name)
		}
	}
	slices.SortFunc(p.users, func(a, b types.NamespacedName) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
}

// choose finds the existing volume for a claim on each node.
func (p *search) choose(n *need) {
	if n.reserved != nil {
		p.chooseReserved(n)
		return
	}
	if !n.searches() || n.group == nil {
		return
	}
	g := n.group
	for slot := p.lo; slot < p.hi && int(slot) < len(g.local); slot++ {
		at := &g.local[slot]
		if at.first == nil {
			continue
		}
		if len(at.more) == 0 && at.head.bytes >= n.request && !at.head.zoned && n.suits(at.head) && !p.isTaken(n, at.head.pvState, slot) {
			p.choices[n.at][slot-p.lo] = at.head
			continue
		}
		p.chooseFrom(n, at.first, at.first.smallest(n), slot)
		for _, b := range at.more {
			p.chooseFrom(n, b, b.smallest(n), slot)
		}
	}
	for _, b := range g.wide {
		p.chooseWide(n, b)
	}
}

// chooseReserved chooses the one volume that the claim may have, and refuses the nodes that cannot have it.
func (p *search) chooseReserved(n *need) {
	p.refuseOthers(n.reserved.affinity, NodeAffinity, n)
	p.refuseOthers(n.reserved.zones, Zone, n)
	choices, kept := p.choices[n.at], newFree(n.reserved)
	for i := range choices {
		choices[i] = kept
	}
}

func (p *search) chooseWide(n *need, b *bucket) {
	first := b.smallest(n)
	if first == len(b.volumes) {
		return
	}
	if b.selector == nil {
		for slot := p.lo; slot < p.hi; slot++ {
			p.chooseFrom(n, b, first, slot)
		}
		return
	}
	for _, slot := range b.selector.within(p.lo, p.hi) {
		p.chooseFrom(n, b, first, slot)
	}
}

// smallest returns the index of the smallest volume in the bucket that is large enough.
func (b *bucket) smallest(n *need) int {
	if len(b.volumes) > 0 && b.volumes[0].bytes >= n.request {
		return 0
	}
	return sort.Search(len(b.volumes), func(i int) bool { return b.volumes[i].bytes >= n.request })
}

// chooseFrom looks in the bucket, from index first, for a volume that the claim can have on the node. It replaces the
// claim's volume there if the new one is better.
func (p *search) chooseFrom(n *need, b *bucket, first int, slot int32) {
	chosen := &p.choices[n.at][slot-p.lo]
	for i := first; i < len(b.volumes); i++ {
		v := b.volumes[i]
		if chosen.pvState != nil && compareVolumes(chosen.pvState, v.pvState) <= 0 {
			return
		}
		if n.suits(v) && !p.isTaken(n, v.pvState, slot) && (!v.zoned || v.zones.has(slot)) {
			*chosen = v
			return
		}
	}
}

// isTaken reports whether an earlier claim of the pod gets the volume on the node.
func (p *search) isTaken(n *need, v *pvState, slot int32) bool {
	for i := range n.at {
		if earlier := &p.needs[i]; !earlier.bound && earlier.group == n.group && p.choices[i][slot-p.lo].pvState == v {
			return true
		}
	}
	return false
}
