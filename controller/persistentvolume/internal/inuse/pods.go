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

// user returns a pod that uses, or may use, a claim, or nil: any pod object that counts. It ignores the pod's node name
// and status: both may be missing, outdated or wrong while the pod runs. It reads the mirror first. Only the store
// proves that no pod uses the claim: then the error is [work.ErrAwaited], and the item is queued again with the answer.
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

// ReadPods reads the pods of a namespace from the store, for all items that wait for them, and queues these items.
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

// lookups are the items that wait for a read of the pods that use their claims. A lookup that is added during a read of
// its namespace is answered by the next read, together with all others: the deletion of a thousand claims costs two
// lists. The methods may be called from several goroutines at once.
type lookups struct {
	mu      sync.Mutex // not held during I/O
	waiting map[string]map[work.Item]lookup
	answers map[work.Item]answer
}

// lookup asks which pods refer to the claim, for the item's object of that UID.
type lookup struct {
	uid   types.UID
	claim types.NamespacedName
}

// answer has the pods that refer to the claim, read from the store after the lookup was added.
type answer struct {
	lookup

	pods []*v1.Pod
}

func newLookups() *lookups {
	return &lookups{waiting: map[string]map[work.Item]lookup{}, answers: map[work.Item]answer{}}
}

// add adds the lookup of an item to the next read of the claim's namespace.
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

// begin removes and returns the lookups of a namespace. A read that begins after it answers them.
func (s *lookups) begin(namespace string) map[work.Item]lookup {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting[namespace]
	delete(s.waiting, namespace)
	return waiting
}

// keep stores the answer for an item.
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
