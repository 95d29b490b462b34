package persistentvolume

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/ordered"
	"github.com/volumekit/volumekit/store"
)

// shelf is what volumes have in common that lie together: a claim of one class, attributes class and volume mode fits no
// volume of another.
type shelf struct {
	class, attributes string
	mode              v1.PersistentVolumeMode
}

func shelfOfVolume(pv *v1.PersistentVolume) shelf {
	return shelf{class: classOfVolume(pv), attributes: deref(pv.Spec.VolumeAttributesClassName), mode: modeOf(pv.Spec.VolumeMode)}
}

func shelfOfClaim(claim *v1.PersistentVolumeClaim) shelf {
	return shelf{class: classOf(claim), attributes: deref(claim.Spec.VolumeAttributesClassName), mode: modeOf(claim.Spec.VolumeMode)}
}

// need is what a claim asks of a volume that names no claim.
type need struct {
	claim    *v1.PersistentVolumeClaim
	selector labels.Selector
	node     *v1.Node // on which the volume is to be had; nil when it is not known
}

func needOf(claim *v1.PersistentVolumeClaim, node *v1.Node) (need, error) {
	if claim.Spec.Selector == nil {
		return need{claim: claim, selector: labels.Everything(), node: node}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	return need{claim: claim, selector: selector, node: node}, err
}

// meets reports whether a volume that names no claim is what is needed.
func (n need) meets(pv *v1.PersistentVolume) bool {
	return usable(n.claim, pv) && free(n.claim, pv, n.selector) && reachable(pv, n.node)
}

// stock is the volumes that claims may have, in the order in which claims want them: what costs a claim does not grow with
// their number. A volume that was taken for a claim is not offered to another before it is given back. One that is offered to a claim
// can be kept for it until the claim has answered. Its methods may be called from several goroutines at once.
type stock struct {
	// look returns a volume as it was seen last, and false when it is gone.
	look func(name string) (*v1.PersistentVolume, bool)

	mu      sync.Mutex // held over nothing that waits
	shelves map[shelf][]*row
	entries map[string]stocked
	taken   map[string]struct{}
	offered map[string]types.NamespacedName // the claims for which volumes are kept
}

// row is the volumes of one shelf that have the same access modes, the smallest first.
type row struct {
	modes   []v1.PersistentVolumeAccessMode // sorted
	volumes *ordered.Set[stocked]
}

// stocked is one volume in stock.
type stocked struct {
	name   string
	bytes  int64
	volume *v1.PersistentVolume
	row    *row
}

func compareStocked(a, b stocked) int {
	return cmp.Or(cmp.Compare(a.bytes, b.bytes), compareHuge(a, b), strings.Compare(a.name, b.name))
}

// compareHuge compares volumes of the same number of bytes, which are not the same where that is the greatest that is counted. What
// has no volume, where a search begins, comes first.
func compareHuge(a, b stocked) int {
	if a.bytes < math.MaxInt64 || a.volume == nil || b.volume == nil {
		return 0
	}
	sizeA, sizeB := capacity(a.volume), capacity(b.volume)
	return sizeA.Cmp(sizeB)
}

func newStock(look func(name string) (*v1.PersistentVolume, bool)) *stock {
	return &stock{look: look, shelves: map[shelf][]*row{}, entries: map[string]stocked{}, taken: map[string]struct{}{},
		offered: map[string]types.NamespacedName{}}
}

// offer calls offerTo with a volume that can be had and is kept for no claim. The volume is kept for the claim that offerTo returns,
// until the offer is withdrawn or the claim takes the volume; for none when it returns false. The lock is held meanwhile, so that
// nobody takes the volume in between. It reports whether the volume is kept for a claim now.
func (s *stock) offer(pv *v1.PersistentVolume, offerTo func(pv *v1.PersistentVolume) (claim types.NamespacedName, keep bool)) (isKept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.entries[pv.Name]
	if _, offered := s.offered[pv.Name]; !there || offered {
		return offered
	}
	claim, keep := offerTo(pv)
	if keep {
		s.offered[pv.Name] = claim
	}
	return keep
}

// withdraw ends the offer of a volume to a claim.
func (s *stock) withdraw(name string, claim types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered[name] == claim {
		delete(s.offered, name)
	}
}

// refresh takes over what is known of a volume. What was taken stays so as long as it looks free: who took it has not
// written that yet.
func (s *stock) refresh(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(name)
}

// put does what refresh does. s.mu is held.
func (s *stock) put(name string) {
	if old, there := s.entries[name]; there {
		s.drop(old)
	}
	pv, there := s.look(name)
	if !there || pv.Spec.ClaimRef != nil || pv.DeletionTimestamp != nil || !unused(pv) {
		delete(s.taken, name)
		delete(s.offered, name)
		return
	}
	if _, taken := s.taken[name]; taken {
		return
	}
	entry := stocked{name: name, bytes: bytesOf(capacity(pv)), volume: pv, row: s.rowOf(pv)}
	entry.row.volumes.Add(entry)
	s.entries[name] = entry
}

// drop takes an entry out, and its row with the last one. s.mu is held.
func (s *stock) drop(entry stocked) {
	delete(s.entries, entry.name)
	entry.row.volumes.Remove(entry)
	if entry.row.volumes.Len() > 0 {
		return
	}
	key := shelfOfVolume(entry.volume)
	s.shelves[key] = slices.DeleteFunc(s.shelves[key], func(r *row) bool { return r == entry.row })
	if len(s.shelves[key]) == 0 {
		delete(s.shelves, key)
	}
}

// rowOf returns the row of a volume, and makes it when there is none. s.mu is held.
func (s *stock) rowOf(pv *v1.PersistentVolume) *row {
	modes := slices.Clone(pv.Spec.AccessModes)
	slices.Sort(modes)
	rows := s.shelves[shelfOfVolume(pv)]
	for _, r := range rows {
		if slices.Equal(r.modes, modes) {
			return r
		}
	}
	made := &row{modes: modes, volumes: ordered.New(compareStocked)}
	rows = append(rows, made)
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(len(a.modes), len(b.modes)) })
	s.shelves[shelfOfVolume(pv)] = rows
	return made
}

// take returns the volume that a claim gets, or nil: the one with the fewest access modes that suffice, of these the
// smallest, of these the first by name. It is the caller's until it is given back or is seen to name a claim.
func (s *stock) take(n need) *v1.PersistentVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := s.best(n)
	if best.volume == nil {
		return nil
	}
	s.drop(best)
	delete(s.offered, best.name)
	s.taken[best.name] = struct{}{}
	return best.volume
}

// best returns the entry of the volume that take takes; one without a volume when there is none. s.mu is held.
func (s *stock) best(n need) (best stocked) {
	for _, r := range s.shelves[shelfOfClaim(n.claim)] {
		if best.volume != nil && len(r.modes) > len(best.row.modes) {
			return best
		}
		found, ok := s.first(r, n)
		if ok && (best.volume == nil || compareStocked(found, best) < 0) {
			best = found
		}
	}
	return best
}

// first returns the smallest volume of a row that is what is needed and is kept for no other claim. s.mu is held.
func (s *stock) first(r *row, n need) (stocked, bool) {
	if !hasAllModes(n.claim, r.modes) {
		return stocked{}, false
	}
	for entry := range r.volumes.From(stocked{bytes: requestedBytes(n.claim)}) {
		claim, offered := s.offered[entry.name]
		if (!offered || claim == store.NameOf(n.claim)) && n.meets(entry.volume) {
			return entry, true
		}
	}
	return stocked{}, false
}

// giveBack ends what take began, and reports whether the volume may be had again.
func (s *stock) giveBack(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, name)
	s.put(name)
	_, there := s.entries[name]
	return there
}

// requestedBytes returns what a claim asks for, as bytesOf does.
func requestedBytes(claim *v1.PersistentVolumeClaim) int64 {
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if size.Sign() < 0 {
		return math.MaxInt64
	}
	return bytesOf(size)
}

// bytesOf returns a size, rounded up to whole bytes; math.MaxInt64 for whatever is larger.
func bytesOf(size resource.Quantity) int64 {
	if size.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return size.Value()
}
