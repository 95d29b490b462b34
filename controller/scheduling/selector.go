package scheduling

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/volumekit/volumekit/volume"
)

// selector selects nodes: by the node affinity of volumes, allowed topologies, the segment of a capacity, or zone
// labels. Equal selections share one selector. Nil selects every node.
type selector struct {
	key     string
	allows  func(node *v1.Node) bool
	keys    []string        // of the labels that allows reads
	labels  []label         // each selected node has one of them; empty if that is unknown
	slots   []int32         // of the selected nodes, ascending
	members map[member]bool // members that depend on slots
	users   int
}

// member is an entry of an index by the slots of a selector.
type member interface {
	// unplace is called before the slots change, place afterwards.
	unplace()
	place()
}

// label is a label of a node. The key nameKey stands for the node's name.
type label struct{ key, value string }

const nameKey = "\x00name"

// has reports whether the selector selects the node of a slot.
func (s *selector) has(slot int32) bool {
	if s == nil {
		return true
	}
	_, found := slices.BinarySearch(s.slots, slot)
	return found
}

// within returns the slots of the selector from lo to before hi. The selector must not be nil.
func (s *selector) within(lo, hi int32) []int32 {
	if lo == 0 && (len(s.slots) == 0 || s.slots[len(s.slots)-1] < hi) {
		return s.slots
	}
	from, _ := slices.BinarySearch(s.slots, lo)
	to, _ := slices.BinarySearch(s.slots, hi)
	return s.slots[from:to]
}

// single returns the only slot of a selector, and false if it has none or several.
func (s *selector) single() (int32, bool) {
	if s == nil || len(s.slots) != 1 {
		return 0, false
	}
	return s.slots[0], true
}

// selectors holds every selector once, and an index from nodes' labels to the selectors that may select such a node.
type selectors struct {
	nodes     *nodes
	byKey     map[string]*selector
	byLabel   map[label]map[*selector]struct{}
	unlabeled map[*selector]struct{} // those that may select any node
}

func newSelectors(n *nodes) *selectors {
	return &selectors{nodes: n, byKey: map[string]*selector{}, byLabel: map[label]map[*selector]struct{}{}, unlabeled: map[*selector]struct{}{}}
}

// release undoes one acquire of a selector.
func (x *selectors) release(s *selector) {
	if s == nil {
		return
	}
	s.users--
	if s.users > 0 {
		return
	}
	delete(x.byKey, s.key)
	delete(x.unlabeled, s)
	for _, l := range s.labels {
		delete(x.byLabel[l], s)
		if len(x.byLabel[l]) == 0 {
			delete(x.byLabel, l)
		}
	}
}

// acquire returns the selector of a key, and nil for a missing one.
func (x *selectors) acquire(key string) *selector {
	s := x.byKey[key]
	if s != nil {
		s.users++
	}
	return s
}

// add stores a missing selector, and acquires it.
func (x *selectors) add(s *selector) *selector {
	s.members, s.users = map[member]bool{}, 1
	x.byKey[s.key] = s
	x.index(s)
	x.evaluate(s)
	return s
}

func (x *selectors) index(s *selector) {
	if len(s.labels) == 0 {
		x.unlabeled[s] = struct{}{}
	}
	for _, l := range s.labels {
		if x.byLabel[l] == nil {
			x.byLabel[l] = map[*selector]struct{}{}
		}
		x.byLabel[l][s] = struct{}{}
	}
}

// evaluate finds the nodes that a new selector selects.
func (x *selectors) evaluate(s *selector) {
	if len(s.labels) == 0 {
		for slot := range x.nodes.entries {
			if n := x.nodes.entries[slot].object; n != nil && s.allows(n) {
				s.slots = append(s.slots, int32(slot))
			}
		}
		return
	}
	for _, l := range s.labels {
		for _, slot := range x.nodes.labeled[l] {
			if s.allows(x.nodes.entries[slot].object) {
				s.slots = append(s.slots, slot)
			}
		}
	}
	slices.Sort(s.slots)
	s.slots = slices.Compact(s.slots)
}

// nodeChanged evaluates the node of a slot again, which has lost and gained labels, for every selector that reads one of
// them and may select the node.
func (x *selectors) nodeChanged(slot int32, lost, gained []label) {
	node := x.nodes.entries[slot].object
	evaluate := func(s *selector) {
		if s.reads(lost) || s.reads(gained) {
			s.set(slot, node != nil && s.allows(node))
		}
	}
	for s := range x.unlabeled {
		evaluate(s)
	}
	for _, l := range lost {
		for s := range x.byLabel[l] {
			evaluate(s)
		}
	}
	for _, l := range x.nodes.entries[slot].labels {
		for s := range x.byLabel[l] {
			evaluate(s)
		}
	}
}

// reads reports whether the selection of a node depends on one of the labels, as it does on the name of a node that is
// new or gone.
func (s *selector) reads(labels []label) bool {
	return slices.ContainsFunc(labels, func(l label) bool { return l.key == nameKey || slices.Contains(s.keys, l.key) })
}

// set adds a slot to the selected ones, or removes it.
func (s *selector) set(slot int32, allowed bool) { //nolint:revive // flag-parameter: it is the value that is set
	i, has := slices.BinarySearch(s.slots, slot)
	if has == allowed {
		return
	}
	for m := range s.members {
		m.unplace()
	}
	if allowed {
		s.slots = slices.Insert(s.slots, i, slot)
	} else {
		s.slots = slices.Delete(s.slots, i, i+1)
	}
	for m := range s.members {
		m.place()
	}
}

// ofVolume returns the selector of a volume's node affinity, nil if it has none.
func (x *selectors) ofVolume(pv *v1.PersistentVolume) *selector {
	if !volume.HasNodeAffinity(pv) {
		return nil
	}
	return x.ofTerms(pv.Spec.NodeAffinity.Required.NodeSelectorTerms)
}

// ofTopologies returns the selector of a class's allowed topologies, nil if it allows all nodes.
func (x *selectors) ofTopologies(allowed []v1.TopologySelectorTerm) *selector {
	if len(allowed) == 0 {
		return nil
	}
	terms := make([]v1.NodeSelectorTerm, len(allowed))
	for i, topology := range allowed {
		for _, e := range topology.MatchLabelExpressions {
			terms[i].MatchExpressions = append(terms[i].MatchExpressions,
				v1.NodeSelectorRequirement{Key: e.Key, Operator: v1.NodeSelectorOpIn, Values: e.Values})
		}
	}
	return x.ofTerms(terms)
}

// ofTerms returns the selector of terms; a node must match one of them.
func (x *selectors) ofTerms(terms []v1.NodeSelectorTerm) *selector {
	key := keyOfTerms(terms)
	if s := x.acquire(key); s != nil {
		return s
	}
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{NodeAffinity: &v1.VolumeNodeAffinity{
		Required: &v1.NodeSelector{NodeSelectorTerms: terms},
	}}}
	return x.add(&selector{
		key: key, keys: keysOfTerms(terms), labels: labelsOfTerms(terms),
		allows: func(node *v1.Node) bool { return volume.CheckNodeAffinity(pv, node) == nil },
	})
}

// ofSegment returns the selector of a capacity's topology, which must not be nil. An error says that it is malformed.
func (x *selectors) ofSegment(topology *metav1.LabelSelector) (*selector, error) {
	if len(topology.MatchLabels)+len(topology.MatchExpressions) == 0 {
		return nil, nil
	}
	key := keyOfSegment(topology)
	if s := x.acquire(key); s != nil {
		return s, nil
	}
	matcher, err := metav1.LabelSelectorAsSelector(topology)
	if err != nil {
		return nil, err
	}
	s := &selector{key: key, allows: func(node *v1.Node) bool { return matcher.Matches(labels.Set(node.Labels)) }}
	for _, name := range slices.Sorted(maps.Keys(topology.MatchLabels)) {
		s.keys = append(s.keys, name)
		s.labels = []label{{name, topology.MatchLabels[name]}}
	}
	for _, e := range topology.MatchExpressions {
		s.keys = append(s.keys, e.Key)
		if s.labels == nil && e.Operator == metav1.LabelSelectorOpIn {
			s.labels = labelsOf(e.Key, e.Values)
		}
	}
	return x.add(s), nil
}

// keyOfSegment returns a text that is equal only for equal topologies.
func keyOfSegment(topology *metav1.LabelSelector) string {
	key := append(make([]byte, 0, 128), "segment"...)
	for _, name := range slices.Sorted(maps.Keys(topology.MatchLabels)) {
		key = strconv.AppendQuote(append(key, ' '), name)
		key = strconv.AppendQuote(append(key, '='), topology.MatchLabels[name])
	}
	for _, e := range topology.MatchExpressions {
		key = appendRequirement(append(key, '|'), e.Key, string(e.Operator), e.Values)
	}
	return string(key)
}

// keysOfTerms returns the keys of the labels that terms read.
func keysOfTerms(terms []v1.NodeSelectorTerm) []string {
	var keys []string
	for _, term := range terms {
		for _, r := range term.MatchExpressions {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

// labelsOfTerms returns labels. Each node that a term selects has one of them. It returns nil if there are no such
// labels.
func labelsOfTerms(terms []v1.NodeSelectorTerm) []label {
	var of []label
	for _, term := range terms {
		found := labelsOfTerm(term)
		if found == nil && len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			return nil
		}
		of = append(of, found...)
	}
	slices.SortFunc(of, func(a, b label) int { return strings.Compare(a.key+"="+a.value, b.key+"="+b.value) })
	return slices.Compact(of)
}

func labelsOfTerm(term v1.NodeSelectorTerm) []label {
	for _, r := range term.MatchFields {
		if r.Key == metav1.ObjectNameField && r.Operator == v1.NodeSelectorOpIn {
			return labelsOf(nameKey, r.Values)
		}
	}
	var best []label
	for _, r := range term.MatchExpressions {
		if r.Operator == v1.NodeSelectorOpIn && (best == nil || r.Key == v1.LabelHostname) {
			best = labelsOf(r.Key, r.Values)
		}
	}
	return best
}

func labelsOf(key string, values []string) []label {
	of := make([]label, 0, len(values))
	for _, value := range values {
		of = append(of, label{key, value})
	}
	return of
}

// keyOfTerms returns a text that is equal only for equal terms.
func keyOfTerms(terms []v1.NodeSelectorTerm) string {
	key := make([]byte, 0, 128)
	for _, term := range terms {
		key = append(key, '|')
		key = appendRequirements(append(key, 'f'), term.MatchFields)
		key = appendRequirements(append(key, 'e'), term.MatchExpressions)
	}
	return string(key)
}

func appendRequirements(key []byte, requirements []v1.NodeSelectorRequirement) []byte {
	for _, r := range requirements {
		key = appendRequirement(key, r.Key, string(r.Operator), r.Values)
	}
	return key
}

func appendRequirement(key []byte, name, operator string, values []string) []byte {
	key = strconv.AppendQuote(key, name)
	key = append(key, operator...)
	for _, value := range values {
		key = strconv.AppendQuote(append(key, ','), value)
	}
	return append(key, ';')
}

// zoneLabels are the zone and region labels of volumes and nodes, each with its replacement on newer nodes.
var zoneLabels = []struct{ ofVolume, ofNode string }{
	{v1.LabelTopologyZone, ""},
	{v1.LabelTopologyRegion, ""},
	{v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone},
	{v1.LabelFailureDomainBetaRegion, v1.LabelTopologyRegion},
}

// ofZones returns the selector of a volume's zone labels, nil if it has none.
func (x *selectors) ofZones(pv *v1.PersistentVolume) *selector {
	var wanted []label
	for _, l := range zoneLabels {
		if value, ok := pv.Labels[l.ofVolume]; ok {
			wanted = append(wanted, label{l.ofVolume, value})
		}
	}
	if wanted == nil {
		return nil
	}
	key := []byte("zones")
	for _, l := range wanted {
		key = strconv.AppendQuote(strconv.AppendQuote(key, l.key), l.value)
	}
	if known := x.acquire(string(key)); known != nil {
		return known
	}
	s := &selector{key: string(key), allows: func(node *v1.Node) bool { return inZones(node, wanted) }}
	for _, l := range zoneLabels {
		s.keys = append(s.keys, l.ofVolume)
	}
	return x.add(s)
}

// inZones reports whether a node is in all zones and regions of a volume. A node without such labels is in all.
func inZones(node *v1.Node, wanted []label) bool {
	labeled := false
	for _, l := range zoneLabels {
		_, has := node.Labels[l.ofVolume]
		labeled = labeled || has
	}
	if !labeled {
		return true
	}
	for _, l := range wanted {
		if !slices.Contains(strings.Split(l.value, "__"), zoneOf(node, l.key)) {
			return false
		}
	}
	return true
}

// zoneOf returns the value of a node's zone label, or of its replacement.
func zoneOf(node *v1.Node, key string) string {
	if value, ok := node.Labels[key]; ok {
		return value
	}
	for _, l := range zoneLabels {
		if l.ofVolume == key && l.ofNode != "" {
			return node.Labels[l.ofNode]
		}
	}
	return ""
}
