package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// scheduler gives nodes to pods that have none. Where a pod can have its volumes, controller/scheduling knows; which of those
// nodes it gets is decided here: one that is alive, and has the most pods, so that other nodes stay free.
//
// Several schedulers work at the same time. Each sees only late what the others do, so that two of them may choose the last place on
// a node. A pod gets its node by a transaction that writes the node too: of two, one is refused, reads the store and chooses anew.
type scheduler struct {
	store   store.Transactor
	volumes *scheduling.Scheduler
	pods    *store.Mirror[*v1.Pod]
	nodes   *store.Mirror[*v1.Node]
	out     *output
	changed chan struct{} // has one entry when there is something to look at

	waiting map[types.UID]string // by pod, why it has no node, as it was said last; only place uses it

	mu      sync.Mutex
	binding map[types.UID]string // by pod, the node where its claims are being bound
	ended   sync.WaitGroup
}

// newScheduler puts a scheduler together. It starts nothing.
func newScheduler(s store.Transactor, out *output) *scheduler {
	mirrors := store.MirrorOptions{InitialBackoff: quickly().Initial, MaxBackoff: quickly().Max}
	c := &scheduler{
		store: s, out: out, pods: store.NewMirror[*v1.Pod](s, mirrors), nodes: store.NewMirror[*v1.Node](s, mirrors),
		changed: make(chan struct{}, 1), binding: make(map[types.UID]string), waiting: make(map[types.UID]string),
	}
	c.volumes = scheduling.New(s, scheduling.Options{Mirrors: mirrors, Changed: func(scheduling.ClusterEvent) { c.requeueAll() }})
	return c
}

// requeueAll has all pods without a node looked at. With many of them, keep what each waits for: see scheduling.Waits.
func (s *scheduler) requeueAll() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// run places pods until ctx ends.
func (s *scheduler) run(ctx context.Context) error {
	err := runAll(ctx, s.volumes.Run, s.follow, s.place)
	s.ended.Wait()
	return err
}

func (s *scheduler) follow(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { s.pods.Follow(ctx, func(*v1.Pod) { s.requeueAll() }) })
	following.Go(func() { s.nodes.Follow(ctx, func(*v1.Node) { s.requeueAll() }) })
	following.Wait()
	return nil
}

// place looks at the pods without a node each time that something has changed. A node is reserved for one pod after the other; their
// claims are bound at the same time.
func (s *scheduler) place(ctx context.Context) error {
	if !s.volumes.WaitSynced(ctx) || !s.pods.WaitSynced(ctx) || !s.nodes.WaitSynced(ctx) {
		return nil
	}
	for {
		for _, pod := range s.pods.All() {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !s.isBinding(pod) {
				s.say(pod, s.placeOne(ctx, pod))
			}
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *scheduler) isBinding(pod *v1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.binding[pod.UID] != ""
}

// say tells why a pod waits, once for each reason.
func (s *scheduler) say(pod *v1.Pod, why error) {
	if why == nil {
		delete(s.waiting, pod.UID)
		return
	}
	if text := why.Error(); s.waiting[pod.UID] != text {
		s.waiting[pod.UID] = text
		s.out.say("pod %s waits for a node: %s", pod.Name, text)
	}
}

// placeOne reserves a node for a pod, and begins to bind its claims. The error says why no node can have it now.
func (s *scheduler) placeOne(ctx context.Context, pod *v1.Pod) error {
	found, err := s.volumes.Find(pod)
	if err != nil {
		return err
	}
	node, err := s.choose(found)
	if err != nil {
		return err
	}
	reservation, err := s.volumes.Reserve(pod, node)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.binding[pod.UID] = node
	s.mu.Unlock()
	s.ended.Go(func() {
		if err := s.bind(ctx, pod, reservation); err != nil && ctx.Err() == nil {
			s.out.say("pod %s is placed anew: %v", pod.Name, err)
		}
		s.mu.Lock()
		delete(s.binding, pod.UID)
		s.mu.Unlock()
		s.requeueAll()
	})
	return nil
}

// choose returns the node with the most pods among those that are alive and can have the volumes of a pod.
func (s *scheduler) choose(found *scheduling.Result) (string, error) {
	pods := s.podsByNode()
	var nodes []string
	var why []error
	for _, node := range s.nodes.All() {
		refusal := found.Why(node.Name)
		switch {
		case !isReady(node) || len(node.Spec.Taints) > 0:
			why = append(why, fmt.Errorf("node %q is not alive", node.Name))
		case refusal != nil:
			why = append(why, refusal)
		default:
			nodes = append(nodes, node.Name)
		}
	}
	if len(nodes) == 0 {
		return "", errors.Join(why...)
	}
	return slices.MinFunc(nodes, func(a, b string) int {
		if pods[a] != pods[b] {
			return pods[b] - pods[a]
		}
		return strings.Compare(a, b)
	}), nil
}

// podsByNode counts the pods of each node, and those that get it now.
func (s *scheduler) podsByNode() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := make(map[string]int)
	for _, node := range s.binding {
		count[node]++
	}
	for _, pod := range s.pods.All() {
		if s.binding[pod.UID] == "" {
			count[pod.Spec.NodeName]++
		}
	}
	return count
}

// bind has the claims of a pod bound for its node, and gives it the node then.
func (s *scheduler) bind(ctx context.Context, pod *v1.Pod, r *scheduling.Reservation) error {
	err := r.Bind(ctx)
	if err == nil {
		err = s.assign(ctx, pod, r.Node())
	}
	if err != nil {
		r.Release()
	}
	return err
}

// errTaken says that another scheduler was faster, or that the node is not alive any more.
var errTaken = errors.New("another scheduler has given the pod a node, or the node its last place, or the node is not alive")

// assign writes the node of a pod, unless another scheduler was faster.
func (s *scheduler) assign(ctx context.Context, pod *v1.Pod, node string) error {
	var refused error
	err := persist(ctx, func() error {
		now, err := store.Get[*v1.Pod](ctx, s.store, pod.Namespace, pod.Name)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && (now.UID != pod.UID || now.Spec.NodeName == node):
			return nil // It is gone, or the answer to an earlier try was lost.
		case err == nil && now.Spec.NodeName != "":
			refused = errTaken
			return nil
		case err != nil:
			return err
		}
		chosen, err := store.Get[*v1.Node](ctx, s.store, "", node)
		if err != nil {
			return err
		}
		room, err := s.hasRoom(ctx, now, chosen)
		if err != nil {
			return err
		}
		if !room {
			refused = errTaken
			return nil
		}
		return s.commit(ctx, now, chosen)
	})
	return errors.Join(err, refused)
}

// hasRoom reads the store, and reports whether a node is alive and can have the volumes of a pod beside those of its pods. What it
// has read of the pods is not older than the node: commit refuses if another pod got the node since.
func (s *scheduler) hasRoom(ctx context.Context, pod *v1.Pod, node *v1.Node) (bool, error) {
	if !isReady(node) || len(node.Spec.Taints) > 0 {
		return false, nil
	}
	pods, _, err := store.ListOf[*v1.Pod](ctx, s.store, "")
	if err != nil {
		return false, err
	}
	claims := make(map[types.NamespacedName]bool)
	for _, other := range append(pods, pod) {
		if other.Spec.NodeName == node.Name || other.UID == pod.UID {
			for _, claim := range volume.ClaimsOfPod(other) {
				claims[claim] = true
			}
		}
	}
	return len(claims) <= volumesPerNode, nil
}

// annPlaced is on a node; its value is the UID of the pod that got it last. Each placement writes it.
const annPlaced = "cluster.volumekit.io/placed"

// commit writes the node of a pod, unless the pod or the node has changed since they were read.
func (s *scheduler) commit(ctx context.Context, pod *v1.Pod, node *v1.Node) error {
	assign(pod, node.Name)
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, annPlaced, string(pod.UID))
	written, err := s.store.Commit(ctx, store.Transaction{Writes: []store.Write{store.ToUpdate(pod), store.ToUpdate(node)}})
	if err != nil {
		return err
	}
	if pod, ok := written[0].(*v1.Pod); ok {
		s.pods.Put(pod)
	}
	return nil
}
