package inuse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// user returns a pod that uses, or may use, a claim, or nil: a pod whose object is there and that counts. Neither its node name nor its
// status is read: both may be missing, old or wrong, and the pod may run all the same. Memory comes first. That no pod uses the claim
// is believed only of the store: the error is then [work.ErrAwaited], and the item is looked at again with the answer.
func (t *Tracker) user(item work.Item, l lookup, counts func(pod *v1.Pod) bool) (*v1.Pod, error) {
	known := t.with.PodsOf.Get(l.claim)
	if at := slices.IndexFunc(known, counts); at >= 0 {
		return known[at], nil
	}
	pods, answered := t.lookups.take(item, l)
	if !answered {
		t.lookups.add(item, l)
		t.with.Queue.Add(work.Namespace, types.NamespacedName{Namespace: l.claim.Namespace})
		return nil, work.ErrAwaited
	}
	if at := slices.IndexFunc(pods, counts); at >= 0 {
		return pods[at], nil
	}
	return nil, nil
}

// ReadPods reads the pods of a namespace from the store for all items that wait for that, and has these looked at again.
func (t *Tracker) ReadPods(ctx context.Context, namespace string) error {
	lookups := t.lookups.begin(namespace)
	if len(lookups) == 0 {
		return nil
	}
	pods, _, err := store.ListOf[*v1.Pod](ctx, t.with.Store, namespace)
	if err != nil {
		for item, l := range lookups {
			t.lookups.add(item, l)
		}
		return fmt.Errorf("the pods of namespace %q, which may use claims that are to go: %w", namespace, err)
	}
	of := map[types.NamespacedName][]*v1.Pod{}
	for _, pod := range pods {
		for _, claim := range volume.ClaimsOfPod(pod) {
			of[claim] = append(of[claim], pod)
		}
	}
	for _, item := range slices.SortedFunc(maps.Keys(lookups), work.Compare) {
		l := lookups[item]
		t.lookups.keep(item, answer{lookup: l, pods: of[l.claim]})
		t.with.Queue.Add(item.Kind, item.Name)
	}
	return nil
}

// lookups are the items that wait until the pods that use their claims were read from the store. A lookup that is added while the pods
// of its namespace are being read is answered by the next reading, with all others: a thousand claims that go cost two lists and not a
// thousand. The methods may be called from several goroutines at once.
type lookups struct {
	mu      sync.Mutex // no call that waits is made under it
	waiting map[string]map[work.Item]lookup
	answers map[work.Item]answer
}

// lookup is made for the object of an item that has the UID: which pods refer to the claim?
type lookup struct {
	uid   types.UID
	claim types.NamespacedName
}

// answer is the pods that refer to the claim, as they were in the store at some time after the lookup was added.
type answer struct {
	lookup

	pods []*v1.Pod
}

func newLookups() *lookups {
	return &lookups{waiting: map[string]map[work.Item]lookup{}, answers: map[work.Item]answer{}}
}

// add adds the lookup of an item, for the next reading of the claim's namespace.
func (s *lookups) add(item work.Item, l lookup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting[l.claim.Namespace]
	if waiting == nil {
		waiting = map[work.Item]lookup{}
		s.waiting[l.claim.Namespace] = waiting
	}
	waiting[item] = l
}

// begin removes and returns the lookups of a namespace. A reading that begins after it answers them.
func (s *lookups) begin(namespace string) map[work.Item]lookup {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting[namespace]
	delete(s.waiting, namespace)
	return waiting
}

// keep keeps the answer for an item.
func (s *lookups) keep(item work.Item, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[item] = a
}

// take returns the answer to a lookup, once.
func (s *lookups) take(item work.Item, l lookup) ([]*v1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, there := s.answers[item]
	delete(s.answers, item)
	return a.pods, there && a.lookup == l
}

// drop removes the answer for an item.
func (s *lookups) drop(item work.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.answers, item)
}
