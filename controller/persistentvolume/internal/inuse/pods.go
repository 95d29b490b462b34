package inuse

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// user returns a pod that uses, or may use, a claim, or nil: any pod object that counts. It ignores the pod's node name
// and status: both may be missing, outdated or wrong while the pod runs. It reads the mirror first. Only the store
// proves that no pod uses the claim: then the error is [work.ErrAwaited], and the item is queued again with the answer.
func (t *Tracker) user(item work.Item, l podsOf, counts func(pod *v1.Pod) bool) (*v1.Pod, error) {
	known := t.with.PodsOf.Get(l.claim)
	if at := slices.IndexFunc(known, counts); at >= 0 {
		return known[at], nil
	}
	pods, answered := t.pods.answer(item, l)
	if !answered {
		t.pods.add(l.claim.Namespace, item, l)
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
	waiting := t.pods.begin(namespace)
	if len(waiting) == 0 {
		return nil
	}
	pods, _, err := store.ListOf[*v1.Pod](ctx, t.with.Store, namespace)
	if err != nil {
		t.pods.addAll(namespace, waiting)
		return fmt.Errorf("the pods of namespace %q, which may use claims that are to go: %w", namespace, err)
	}
	of := map[types.NamespacedName][]*v1.Pod{}
	for _, pod := range pods {
		for _, claim := range volume.ClaimsOfPod(pod) {
			of[claim] = append(of[claim], pod)
		}
	}
	for _, item := range slices.SortedFunc(maps.Keys(waiting), work.Compare) {
		l := waiting[item]
		t.pods.keep(item, l, of[l.claim])
		t.with.Queue.Add(item.Kind, item.Name)
	}
	return nil
}

// podsOf looks up the pods that refer to the claim, for the item's object of that UID.
type podsOf struct {
	uid   types.UID
	claim types.NamespacedName
}
