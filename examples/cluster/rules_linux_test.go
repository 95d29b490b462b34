package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// rules looks at each pod when it gets its node from a scheduler: is that a node that can have its volume, beside those that
// schedulers have placed there? A pod to which a test gives a node may be there before the scheduler knows of it, and is not counted: its
// volume, or the other one, waits to be attached.
type rules struct {
	pods   *store.Mirror[*v1.Pod]
	placed map[types.UID]bool // every pod without a node, and true for those that got one from a scheduler; only changed uses it

	mu    sync.Mutex
	count int // of the pods that a scheduler has placed
	most  int // volumes on one node after one of them was placed there
	errs  []error
}

func newRules(s store.Store) *rules {
	return &rules{pods: store.NewMirror[*v1.Pod](s, store.MirrorOptions{}), placed: make(map[types.UID]bool)}
}

// run looks until ctx ends.
func (r *rules) run(ctx context.Context) { r.pods.Follow(ctx, r.changed) }

func (r *rules) changed(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		r.placed[pod.UID] = false
		return
	}
	hadNode, waited := r.placed[pod.UID]
	if !waited || hadNode {
		return // A test gave it the node, or it was looked at.
	}
	r.placed[pod.UID] = true
	claims := make(map[string]bool)
	for _, other := range append(r.pods.All(), pod) {
		if other.Spec.NodeName == pod.Spec.NodeName && r.placed[other.UID] {
			claims[other.Spec.Volumes[0].PersistentVolumeClaim.ClaimName] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.most = max(r.most, len(claims))
	if len(claims) > volumesPerNode {
		r.errs = append(r.errs, fmt.Errorf("pod %s is one too many on %s: %v", pod.Name, pod.Spec.NodeName, claims))
	}
	if pod.Spec.NodeName == farNode {
		r.errs = append(r.errs, fmt.Errorf("pod %s is on %s, where its volume cannot be", pod.Name, farNode))
	}
}

// broken returns how the rules were broken.
func (r *rules) broken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

// figures returns how many pods were placed, and the largest number of volumes that a node had then.
func (r *rules) figures() (placed, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count, r.most
}
