package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// plainWorld is the objects of a store, and what is reserved, without any index.
type plainWorld struct {
	nodes        map[string]*v1.Node
	csiNodes     map[string]*storagev1.CSINode
	volumes      map[string]*v1.PersistentVolume
	claims       map[types.NamespacedName]*v1.PersistentVolumeClaim
	classes      map[string]*storagev1.StorageClass
	pods         map[types.NamespacedName]*v1.Pod
	attachments  map[string]*storagev1.VolumeAttachment
	capacities   map[types.NamespacedName]*storagev1.CSIStorageCapacity
	drivers      map[string]string // by VolumeAttributesClass
	reservations []*Reservation
	reserved     map[podKey]*v1.Pod // the pods of the reservations so far
}

// placedPods returns the pods of each node.
func (w *plainWorld) placedPods() map[string][]*v1.Pod {
	placed := map[string][]*v1.Pod{}
	for _, p := range w.pods {
		if p.Spec.NodeName != "" {
			placed[p.Spec.NodeName] = append(placed[p.Spec.NodeName], p)
		}
	}
	for _, r := range w.reservations {
		placed[r.node] = append(placed[r.node], w.reserved[r.key])
	}
	return placed
}

// reservationOf returns what is reserved for a claim.
func (w *plainWorld) reservationOf(claim types.NamespacedName) (choice, string, bool) {
	for _, r := range w.reservations {
		for _, c := range r.choices {
			if c.name == claim {
				return c, r.node, true
			}
		}
	}
	return choice{}, "", false
}

func (w *plainWorld) attachedOf(claim types.NamespacedName) string {
	c := w.claims[claim]
	if c == nil {
		return ""
	}
	name := c.Spec.VolumeName
	if reserved, _, held := w.reservationOf(claim); held && w.volumes[name] == nil {
		name = reserved.volume
	}
	if pv := w.volumes[name]; pv != nil {
		return pv.Spec.CSI.Driver + " " + pv.Spec.CSI.VolumeHandle
	}
	if class := w.classes[objects.ClassOf(c)]; class != nil && provisions(class) {
		return class.Provisioner + " " + claim.String()
	}
	return ""
}

// onNode returns the volumes that are in use on a node.
func (w *plainWorld) onNode(node string) map[string]bool {
	used := map[string]bool{}
	for _, p := range w.placedPods()[node] {
		for _, claim := range volume.ClaimsOfPod(p) {
			used[w.attachedOf(claim)] = true
		}
	}
	for _, at := range w.attachments {
		if pv := w.volumes[*at.Spec.Source.PersistentVolumeName]; pv != nil && at.Spec.NodeName == node {
			used[pv.Spec.CSI.Driver+" "+pv.Spec.CSI.VolumeHandle] = true
		}
	}
	delete(used, "")
	return used
}

// reachable reports whether a node can have a volume, by affinity and zone.
func reachable(pv *v1.PersistentVolume, node *v1.Node) (affinity, zone bool) {
	affinity = volume.CheckNodeAffinity(pv, node) == nil
	want, labelled := pv.Labels[v1.LabelTopologyZone]
	have, there := node.Labels[v1.LabelTopologyZone]
	return affinity, !labelled || !there || want == have
}

// find is the rules, for one node.
func (w *plainWorld) find(p *v1.Pod, node *v1.Node) (reasons map[Reason]bool, chosen map[string]string) {
	reasons, chosen = map[Reason]bool{}, map[string]string{}
	var late []*v1.PersistentVolumeClaim
	added := map[string]bool{}
	for _, name := range claimsOfPod(p) {
		claim := w.claims[name]
		w.users(p, node, name, reasons)
		if !isBound(claim) {
			late = append(late, claim)
			continue
		}
		pv := w.volumes[claim.Spec.VolumeName]
		if pv == nil {
			reasons[VolumeMissing] = true
			continue
		}
		affinity, zone := reachable(pv, node)
		reasons[NodeAffinity], reasons[Zone] = reasons[NodeAffinity] || !affinity, reasons[Zone] || !zone
		added[w.attachedOf(name)] = true
	}
	slices.SortFunc(late, func(a, b *v1.PersistentVolumeClaim) int {
		sizeA, sizeB := a.Spec.Resources.Requests[v1.ResourceStorage], b.Spec.Resources.Requests[v1.ResourceStorage]
		return cmp.Or(sizeA.Cmp(sizeB), cmp.Compare(a.Name, b.Name))
	})
	taken := map[string]bool{}
	sums := map[string]int64{}
	for _, claim := range late {
		pv := w.choose(claim, node, taken, reasons)
		if pv != nil {
			chosen[claim.Name] = pv.Name
			taken[pv.Name] = true
			added[pv.Spec.CSI.Driver+" "+pv.Spec.CSI.VolumeHandle] = true
		}
	}
	for _, claim := range late {
		if chosen[claim.Name] == "" {
			w.provision(claim, node, sums, reasons)
			if class := w.classes[objects.ClassOf(claim)]; provisions(class) {
				added[class.Provisioner+" "+store.NameOf(claim).String()] = true
			}
		}
	}
	maps.DeleteFunc(reasons, func(_ Reason, set bool) bool { return !set })
	if onlyPods(reasons) && w.exceeds(node.Name, added) {
		reasons[AttachLimit] = true
	}
	return reasons, chosen
}

// onlyPods reports whether all reasons can end with pods.
func onlyPods(reasons map[Reason]bool) bool {
	for reason := range reasons {
		if reason != InUseByPod && reason != InUseOnOtherNode {
			return false
		}
	}
	return true
}

func (w *plainWorld) exceeds(node string, added map[string]bool) bool {
	csiNode := w.csiNodes[node]
	if csiNode == nil {
		return false
	}
	used, news := w.onNode(node), 0
	count := func(set map[string]bool) int {
		n := 0
		for a := range set {
			if strings.HasPrefix(a, "csi.example ") {
				n++
			}
		}
		return n
	}
	for a := range added {
		if !used[a] && strings.HasPrefix(a, "csi.example ") {
			news++
		}
	}
	return news > 0 && count(used)+news > int(*csiNode.Spec.Drivers[0].Allocatable.Count)
}

// users adds the reasons that pods with the same claim give.
func (w *plainWorld) users(p *v1.Pod, node *v1.Node, name types.NamespacedName, reasons map[Reason]bool) {
	claim := w.claims[name]
	pv := w.volumes[claim.Spec.VolumeName]
	if !isBound(claim) {
		pv = w.keptFor(claim)
	}
	for on, pods := range w.placedPods() {
		for _, other := range pods {
			if keyOfPod(other) == keyOfPod(p) || !slices.Contains(volume.ClaimsOfPod(other), name) {
				continue
			}
			if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
				reasons[InUseByPod] = true
				continue
			}
			if pv != nil && on != node.Name && !volume.IsMultiAttachAllowed(volume.NewSpecFromPersistentVolume(pv, false)) {
				reasons[InUseOnOtherNode] = true
			}
		}
	}
}

// keptFor returns the volume that an unbound claim must have, nil for none.
func (w *plainWorld) keptFor(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	if reserved, _, held := w.reservationOf(store.NameOf(claim)); held && w.volumes[reserved.volume] != nil {
		return w.volumes[reserved.volume]
	}
	all := slices.SortedFunc(maps.Values(w.volumes), func(a, b *v1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return fit.BestReserved(claim, slices.DeleteFunc(all, func(pv *v1.PersistentVolume) bool { return pv.Spec.ClaimRef == nil }))
}

// madeFor returns the node for which the volume of a claim is being made, "" for none.
func (w *plainWorld) madeFor(claim *v1.PersistentVolumeClaim) string {
	if _, node, held := w.reservationOf(store.NameOf(claim)); held {
		return node
	}
	return claim.Annotations[objects.AnnSelectedNode]
}

func (w *plainWorld) choose(claim *v1.PersistentVolumeClaim, node *v1.Node, taken map[string]bool, reasons map[Reason]bool) *v1.PersistentVolume {
	if pv := w.keptFor(claim); pv != nil {
		affinity, zone := reachable(pv, node)
		reasons[NodeAffinity], reasons[Zone] = reasons[NodeAffinity] || !affinity, reasons[Zone] || !zone
		return pv
	}
	if made := w.madeFor(claim); made != "" {
		if made != node.Name {
			reasons[SelectedElsewhere] = true
		}
		if provisions(w.classes[objects.ClassOf(claim)]) {
			return nil
		}
	}
	selector, _ := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if claim.Spec.Selector == nil {
		selector = labels.Everything()
	}
	var best *v1.PersistentVolume
	for _, pv := range w.volumes {
		affinity, zone := reachable(pv, node)
		if pv.Spec.ClaimRef != nil || !fit.Usable(claim, pv) || !fit.Free(claim, pv, selector) || !affinity || !zone || taken[pv.Name] || w.isHeld(pv.Name) {
			continue
		}
		if best == nil || plainLess(pv, best) {
			best = pv
		}
	}
	return best
}

func plainLess(a, b *v1.PersistentVolume) bool {
	sizeA, sizeB := fit.Capacity(a), fit.Capacity(b)
	return cmp.Or(sizeA.Cmp(sizeB), cmp.Compare(len(a.Spec.AccessModes), len(b.Spec.AccessModes)), cmp.Compare(a.Name, b.Name)) < 0
}

func (w *plainWorld) isHeld(name string) bool {
	return slices.ContainsFunc(w.reservations, func(r *Reservation) bool {
		return slices.ContainsFunc(r.choices, func(c choice) bool { return c.volume == name })
	})
}

func (w *plainWorld) provision(claim *v1.PersistentVolumeClaim, node *v1.Node, sums map[string]int64, reasons map[Reason]bool) {
	class := w.classes[objects.ClassOf(claim)]
	made := w.madeFor(claim)
	allowed := len(class.AllowedTopologies) == 0
	for _, term := range class.AllowedTopologies {
		allowed = allowed || slices.Contains(term.MatchLabelExpressions[0].Values, node.Labels[term.MatchLabelExpressions[0].Key])
	}
	request := fit.RequestedBytes(claim)
	switch {
	case made != "" && made != node.Name:
	case !provisions(class):
		reasons[NoVolume] = true
	case claim.Spec.VolumeAttributesClassName != nil && w.drivers[*claim.Spec.VolumeAttributesClassName] != class.Provisioner:
		reasons[NoAttributesClass] = true
	case !allowed:
		reasons[NoTopology] = true
	case made != "":
	case !w.hasRoom(class.Name, node, request, sums[class.Name]):
		reasons[NoCapacity] = true
	default:
		sums[class.Name] += request
	}
}

func (w *plainWorld) hasRoom(class string, node *v1.Node, request, earlier int64) bool {
	for _, c := range w.capacities {
		topology, _ := metav1.LabelSelectorAsSelector(c.NodeTopology)
		if c.StorageClassName != class || !topology.Matches(labels.Set(node.Labels)) {
			continue
		}
		left := c.Capacity.Value() - earlier
		for name, claim := range w.claims {
			reserved, _, held := w.reservationOf(name)
			if claim.Spec.VolumeName != "" || objects.ClassOf(claim) != class || held && reserved.volume != "" {
				continue
			}
			on := w.nodes[w.madeFor(claim)]
			if w.madeFor(claim) != "" && (topology.Empty() || on != nil && topology.Matches(labels.Set(on.Labels))) {
				left -= fit.RequestedBytes(claim)
			}
		}
		if request <= left && request <= c.Capacity.Value() {
			return true
		}
	}
	return false
}

// chooser makes worlds.
type chooser struct{ *rand.Rand }

func (c chooser) node() string  { return fmt.Sprint("node-", c.IntN(6)) }
func (c chooser) zone() string  { return string(rune('a' + c.IntN(3))) }
func (c chooser) claim() string { return fmt.Sprint("claim-", c.IntN(9)) }
func (c chooser) pv() string    { return fmt.Sprint("pv-", c.IntN(14)) }
func (c chooser) class() string { return []string{"late", "made", "zoned"}[c.IntN(3)] }
func (c chooser) often() bool   { return c.IntN(4) > 0 }

func (c chooser) newVolume(name string) *v1.PersistentVolume {
	pv := newVolume(name, holding(fmt.Sprint(1+c.IntN(4), "Gi")), volumeClass(c.class()))
	switch c.IntN(6) {
	case 0:
	case 1:
		at("zone", c.zone(), c.zone())(pv)
	case 2:
		terms(v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpNotIn, Values: []string{c.zone()}}}},
			v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{c.node()}}}})(pv)
	case 3:
		terms(v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{c.zone()}}, {Key: "disk", Operator: v1.NodeSelectorOpExists},
		}})(pv)
	default:
		atNode(c.node())(pv)
	}
	if !c.often() {
		pv.Labels = map[string]string{v1.LabelTopologyZone: c.zone(), "disk": "fast"}
	}
	if c.IntN(8) == 0 {
		pv.Spec.VolumeAttributesClassName = ptr("missing")
	}
	if !c.often() {
		refTo(c.claim(), "")(pv)
	}
	if !c.often() {
		volumeModes(v1.ReadWriteOnce, v1.ReadWriteMany)(pv)
	}
	return pv
}

func (c chooser) newClaim(name string) *v1.PersistentVolumeClaim {
	claim := newClaim(name, asks(fmt.Sprint(1+c.IntN(3), "Gi")), ofClass(c.class()))
	switch c.IntN(9) {
	case 6:
		attributes([]string{"gold", "lead", "missing"}[c.IntN(3)])(claim)
	case 0, 1:
		boundTo(c.pv())(claim)
	case 2:
		claimAnnotation(objects.AnnSelectedNode, c.node())(claim)
	case 3:
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
	case 4:
		claimModes(v1.ReadWriteMany)(claim)
	case 5:
		claimModes(v1.ReadWriteOncePod)(claim)
	}
	return claim
}

func (c chooser) newPod(name string) *v1.Pod {
	p := newPod(name)
	for range 1 + c.IntN(3) {
		p.Spec.Volumes = append(p.Spec.Volumes, newPod("", c.claim()).Spec.Volumes...)
	}
	return p
}

// step changes one object in the world and in the index.
func (w *plainWorld) step(c chooser, x *index) {
	switch c.IntN(9) {
	case 0:
		name := c.node()
		node := newNode(name, "zone", c.zone())
		if c.often() {
			node.Labels["disk"] = "fast"
		}
		if c.often() {
			node.Labels[v1.LabelTopologyZone] = c.zone()
		}
		x.refreshNode(name, put(w.nodes, name, node, c.often()))
	case 1, 2:
		name := c.pv()
		x.refreshVolume(name, put(w.volumes, name, c.newVolume(name), c.often()))
	case 3, 4:
		name := nn(c.claim())
		x.refreshClaim(name, put(w.claims, name, c.newClaim(name.Name), true))
	case 5:
		name := c.node()
		x.refreshCSINode(name, put(w.csiNodes, name, newCSINode(name, int32(1+c.IntN(4))), c.often()))
	case 6:
		name := nn(fmt.Sprint("pod-", c.IntN(8)))
		p := on(c.newPod(name.Name), c.node())
		p.UID = types.UID(fmt.Sprint(c.Int()))
		x.refreshPod(name, put(w.pods, name, p, c.often()))
	case 7:
		name := fmt.Sprint("at-", c.IntN(4))
		x.refreshAttachment(name, put(w.attachments, name, newAttachment(name, c.pv(), c.node()), c.often()))
	case 8:
		name := nn(fmt.Sprint("cap-", c.IntN(5)))
		object := newCapacity(name.Name, fmt.Sprint(c.IntN(7), "Gi"), segment(v1.LabelHostname, c.node()))
		object.StorageClassName = []string{"made", "zoned"}[c.IntN(2)]
		object.UID = types.UID(fmt.Sprint(c.Int()))
		if !c.often() {
			segment("zone", c.zone())(object)
		}
		if !c.often() {
			segment()(object)
		}
		x.capacities.refresh(name, put(w.capacities, name, object, c.often()))
	}
}

var attributeDrivers = map[string]string{"gold": "csi.example", "lead": "other.example"}

func put[K comparable, T store.Object](m map[K]T, key K, obj T, there bool) T {
	if !there {
		delete(m, key)
		var none T
		return none
	}
	m[key] = obj
	return obj
}

func newPlainWorld() *plainWorld {
	return &plainWorld{
		nodes: map[string]*v1.Node{}, csiNodes: map[string]*storagev1.CSINode{}, volumes: map[string]*v1.PersistentVolume{},
		claims: map[types.NamespacedName]*v1.PersistentVolumeClaim{}, classes: map[string]*storagev1.StorageClass{}, pods: map[types.NamespacedName]*v1.Pod{}, reserved: map[podKey]*v1.Pod{},
		attachments: map[string]*storagev1.VolumeAttachment{}, capacities: map[types.NamespacedName]*storagev1.CSIStorageCapacity{},
	}
}

// compare fails unless the index gives the verdicts of the rules for a pod.
func (w *plainWorld) compare(t *testing.T, s *Scheduler, p *v1.Pod, where string) {
	t.Helper()
	result, err := s.Find(p)
	if err != nil {
		return // a claim that is Pending with a volume, or missing: the rows have those
	}
	for name, node := range w.nodes {
		reasons, chosen := w.find(p, node)
		want := slices.Sorted(maps.Keys(reasons))
		var got []Reason
		if why := result.Why(name); why != nil {
			got = why.Reasons
		}
		require.Equal(t, want, got, "%s: pod %v on %s", where, claimsOfPod(p), name)
		if len(want) > 0 {
			continue
		}
		s.index.check(t, p, name, chosen, where)
	}
}

// check fails unless a search of one node alone chooses these volumes.
func (x *index) check(t *testing.T, p *v1.Pod, node string, chosen map[string]string, where string) {
	t.Helper()
	slot, _ := x.nodes.find(node)
	search, err := x.newSearch(p, slot, slot+1, LeastCapacityLeft)
	require.NoError(t, err)
	defer search.release()
	search.run()
	require.Zero(t, search.results[0].first, where)
	got := map[string]string{}
	for _, c := range search.choicesAt(0) {
		if c.volume != "" {
			got[c.name.Name] = c.volume
		}
	}
	require.Equal(t, chosen, got, "%s: pod %v on %s", where, claimsOfPod(p), node)
}

// Find gives the verdict that the rules give one node and one volume at a time, whatever has changed before and is reserved.
func TestFindIsWhatTheRulesSay(t *testing.T) {
	for seed := range uint64(40) {
		c := chooser{rand.New(rand.NewPCG(seed, 0))}
		w := newPlainWorld()
		s := New(store.NewMemory(store.MemoryOptions{}), Options{})
		classes := []*storagev1.StorageClass{newClass("late"), newClass("made", makes), newClass("zoned", makes, allows("zone", "a", "b"))}
		for _, class := range classes {
			w.classes[class.Name] = class
			s.index.refreshClass(class.Name, class)
		}
		s.index.capacities.drivers["csi.example"] = newDriver()
		s.index.attributeDrivers, w.drivers = attributeDrivers, attributeDrivers
		for i := range 9 {
			name := nn(fmt.Sprint("claim-", i))
			s.index.refreshClaim(name, put(w.claims, name, c.newClaim(name.Name), true))
		}
		for step := range 150 {
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			w.reserveAndRelease(c, s, step)
			w.step(c, s.index)
			for _, capacity := range s.index.capacities.byName {
				capacity.recent = nil // time goes by
			}
			w.reservations = slices.DeleteFunc(w.reservations, func(r *Reservation) bool { return r.ended })
			if len(w.reservations) > 0 && step%10 < 9 {
				w.dropStale(s)
			}
			w.compare(t, s, c.newPod(fmt.Sprint("p-", step)), where)
		}
		requireSameAsAnew(t, w, s, c)
	}
}

// reserveAndRelease sometimes reserves a node for a pod, or releases a reservation.
func (w *plainWorld) reserveAndRelease(c chooser, s *Scheduler, step int) {
	switch {
	case len(w.reservations) > 2 || len(w.reservations) > 0 && !c.often():
		w.reservations[0].Release()
		w.reservations = w.reservations[1:]
	case c.often():
		return
	default:
		p := c.newPod(fmt.Sprint("r-", step))
		if r, err := s.Reserve(p, c.node()); err == nil {
			w.reserved[r.key] = p
			w.reservations = append(w.reservations, r)
		}
	}
}

// dropStale releases reservations of which an object was made anew under their hands: what counts then is not the same for both.
func (w *plainWorld) dropStale(s *Scheduler) {
	for _, r := range w.reservations {
		for _, ch := range r.choices {
			reserved := s.index.claimReservations[ch.name]
			if reserved == nil || reserved.volume != ch.volume || reserved.node != r.node || w.claims[ch.name].Spec.VolumeName != "" || ch.volume != "" && (w.volumes[ch.volume] == nil || w.volumes[ch.volume].Spec.ClaimRef != nil) {
				r.Release()
				break
			}
		}
	}
	w.reservations = slices.DeleteFunc(w.reservations, func(r *Reservation) bool { return r.ended })
}

// requireSameAsAnew fails unless an index that is built of the objects gives the same verdicts, and the old one keeps nothing more.
func requireSameAsAnew(t *testing.T, w *plainWorld, s *Scheduler, c chooser) {
	t.Helper()
	for _, r := range w.reservations {
		r.Release()
	}
	w.reservations = nil
	anew := New(store.NewMemory(store.MemoryOptions{}), Options{})
	for name, class := range w.classes {
		anew.index.refreshClass(name, class)
	}
	anew.index.capacities.drivers["csi.example"] = newDriver()
	anew.index.attributeDrivers = w.drivers
	each(w.pods, func(name types.NamespacedName, p *v1.Pod) bool {
		anew.index.refreshPod(name, p)
		return true
	})
	each(w.capacities, anew.index.capacities.refresh)
	each(w.attachments, func(name string, at *storagev1.VolumeAttachment) bool {
		anew.index.refreshAttachment(name, at)
		return true
	})
	each(w.claims, func(name types.NamespacedName, claim *v1.PersistentVolumeClaim) bool {
		anew.index.refreshClaim(name, claim)
		return true
	})
	each(w.volumes, func(name string, pv *v1.PersistentVolume) bool { anew.index.refreshVolume(name, pv); return true })
	each(w.csiNodes, anew.index.refreshCSINode)
	each(w.nodes, anew.index.refreshNode)
	for range 10 {
		w.compare(t, anew, c.newPod("p"), "anew")
	}
	require.Len(t, s.index.nodes.slots, len(anew.index.nodes.slots))
	require.Len(t, s.index.selectors.byKey, len(anew.index.selectors.byKey), "unused selectors")
	require.Len(t, s.index.selectors.byLabel, len(anew.index.selectors.byLabel))
	require.Len(t, s.index.nodes.labeled, len(anew.index.nodes.labeled))
	require.Len(t, s.index.groups, len(anew.index.groups))
	require.Len(t, s.index.capacities.allocations, len(anew.index.capacities.allocations))
	require.Len(t, s.index.podsOf, len(anew.index.podsOf))
	require.Len(t, s.index.naming, len(anew.index.naming))
	require.Empty(t, s.index.claimReservations)
	require.Empty(t, s.index.reservedBy)
	for name, d := range anew.index.drivers {
		require.Len(t, s.index.drivers[name].used, len(d.used))
	}
}

func each[K comparable, V, R any](m map[K]V, do func(K, V) R) {
	for key, value := range m {
		do(key, value)
	}
}
