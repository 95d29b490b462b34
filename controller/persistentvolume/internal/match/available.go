package match

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/internal/ordered"
	"github.com/volumekit/volumekit/store"
)

// available is the index of the volumes that name no claim, in the order of preference: the cost of a search does not
// grow with their number. A taken volume goes to no other claim before it is given back. A volume that is offered to a
// claim can be reserved for it until the claim was synced. Its methods may be called from several goroutines at once.
type available struct {
	// look returns the mirror's version of a volume, and false if it is gone.
	look func(name string) (*v1.PersistentVolume, bool)

	mu      sync.Mutex // not held during I/O or callbacks that wait
	groups  map[fit.Group][]*list
	entries map[string]entry
	taken   map[string]struct{}
	keptFor map[string]types.NamespacedName // the claims for which volumes are kept
}

// list is the volumes of one group that have the same access modes, the smallest first.
type list struct {
	modes   []v1.PersistentVolumeAccessMode // sorted
	volumes *ordered.Set[entry]
}

// entry is one available volume.
type entry struct {
	name   string
	bytes  int64
	volume *v1.PersistentVolume
	list   *list
}

func compareEntries(a, b entry) int {
	return cmp.Or(cmp.Compare(a.bytes, b.bytes), compareHuge(a, b), strings.Compare(a.name, b.name))
}

// compareHuge compares volumes of the same number of bytes. If that is the largest number that is counted, their sizes
// may differ. An entry without a volume, where a search begins, comes first.
func compareHuge(a, b entry) int {
	if a.bytes < math.MaxInt64 || a.volume == nil || b.volume == nil {
		return 0
	}
	sizeA, sizeB := fit.Capacity(a.volume), fit.Capacity(b.volume)
	return sizeA.Cmp(sizeB)
}

func newAvailable(look func(name string) (*v1.PersistentVolume, bool)) *available {
	return &available{look: look, groups: map[fit.Group][]*list{}, entries: map[string]entry{}, taken: map[string]struct{}{},
		keptFor: map[string]types.NamespacedName{}}
}

// offer calls offerTo with a volume that is available and reserved for no claim. The volume is reserved for the claim
// that offerTo returns, until the offer is withdrawn or the claim takes the volume. If offerTo returns false, it is not
// reserved. The lock is held meanwhile: no claim takes the volume in between. offer reports whether the volume is
// reserved now.
func (s *available) offer(pv *v1.PersistentVolume, offerTo func(pv *v1.PersistentVolume) (claim types.NamespacedName, keep bool)) (isKept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.entries[pv.Name]
	if _, kept := s.keptFor[pv.Name]; !there || kept {
		return kept
	}
	claim, keep := offerTo(pv)
	if keep {
		s.keptFor[pv.Name] = claim
	}
	return keep
}

// withdraw ends the offer of a volume to a claim.
func (s *available) withdraw(name string, claim types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keptFor[name] == claim {
		delete(s.keptFor, name)
	}
}

// refresh reads a volume again. A taken volume stays taken while it names no claim: the mirror may not have the write
// that names the claim yet.
func (s *available) refresh(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(name)
}

// put does the work of refresh. The caller holds s.mu.
func (s *available) put(name string) {
	if old, there := s.entries[name]; there {
		s.drop(old)
	}
	pv, there := s.look(name)
	if !there || pv.Spec.ClaimRef != nil || pv.DeletionTimestamp != nil || !fit.Unused(pv) {
		delete(s.taken, name)
		delete(s.keptFor, name)
		return
	}
	if _, taken := s.taken[name]; taken {
		return
	}
	e := entry{name: name, bytes: fit.Bytes(fit.Capacity(pv)), volume: pv, list: s.listOf(pv)}
	e.list.volumes.Add(e)
	s.entries[name] = e
}

// drop removes an entry, and its list if it is the last one. The caller holds s.mu.
func (s *available) drop(e entry) {
	delete(s.entries, e.name)
	e.list.volumes.Remove(e)
	if e.list.volumes.Len() > 0 {
		return
	}
	key := fit.GroupOfVolume(e.volume)
	s.groups[key] = slices.DeleteFunc(s.groups[key], func(l *list) bool { return l == e.list })
	if len(s.groups[key]) == 0 {
		delete(s.groups, key)
	}
}

// listOf returns the list of a volume, and makes a missing one. The caller holds s.mu.
func (s *available) listOf(pv *v1.PersistentVolume) *list {
	modes := slices.Clone(pv.Spec.AccessModes)
	slices.Sort(modes)
	lists := s.groups[fit.GroupOfVolume(pv)]
	for _, l := range lists {
		if slices.Equal(l.modes, modes) {
			return l
		}
	}
	made := &list{modes: modes, volumes: ordered.New(compareEntries)}
	lists = append(lists, made)
	slices.SortFunc(lists, func(a, b *list) int { return cmp.Compare(len(a.modes), len(b.modes)) })
	s.groups[fit.GroupOfVolume(pv)] = lists
	return made
}

// take returns the volume for a claim, or nil: the one with the fewest sufficient access modes, then the smallest, then
// the first by name. It belongs to the caller until it is given back or names a claim.
func (s *available) take(n Need) *v1.PersistentVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := s.best(n)
	if best.volume == nil {
		return nil
	}
	s.drop(best)
	delete(s.keptFor, best.name)
	s.taken[best.name] = struct{}{}
	return best.volume
}

// best returns the entry of the volume for take; an entry without a volume if there is none. The caller holds s.mu.
func (s *available) best(n Need) (best entry) {
	for _, l := range s.groups[fit.GroupOfClaim(n.claim)] {
		if best.volume != nil && len(l.modes) > len(best.list.modes) {
			return best
		}
		found, ok := s.first(l, n)
		if ok && (best.volume == nil || compareEntries(found, best) < 0) {
			best = found
		}
	}
	return best
}

// first returns the smallest volume of a list that meets the need and is not reserved for another claim. The caller
// holds s.mu.
func (s *available) first(l *list, n Need) (entry, bool) {
	if !fit.HasModes(n.claim, l.modes) {
		return entry{}, false
	}
	for e := range l.volumes.From(entry{bytes: fit.RequestedBytes(n.claim)}) {
		claim, kept := s.keptFor[e.name]
		if (!kept || claim == store.NameOf(n.claim)) && n.meets(e.volume) {
			return e, true
		}
	}
	return entry{}, false
}

// giveBack undoes take, and reports whether the volume is available again.
func (s *available) giveBack(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, name)
	s.put(name)
	_, there := s.entries[name]
	return there
}
