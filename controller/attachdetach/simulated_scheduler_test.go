package attachdetach_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/store"
)

// This file is a scheduler of the simulation: it places pods as controller/scheduling says, and tries a refused pod again only after a
// change that may end what the pod waits for.

// scheduler is the scheduler of one process.
type scheduler struct {
	cluster *cluster
	process string
	store   store.Store
	volumes *scheduling.Scheduler
	pods    *store.Mirror[*v1.Pod]
	nodes   *store.Mirror[*v1.Node]
	changed chan struct{} // has one entry when there is a pod to look at
	binding sync.WaitGroup

	mu sync.Mutex
	// known are the pods that are being bound, or were refused, by UID.
	known map[types.UID]*placing
}

// placing is what a scheduler knows of a pod without a node.
type placing struct {
	binds bool
	// waits is what ends the wait of a refused pod; anyNode says that a change of a node may, too.
	waits   scheduling.Waits
	anyNode bool
}

// schedule runs the scheduler of a process until ctx ends.
func schedule(ctx context.Context, _ *testing.T, c *cluster, process string, s store.Store) error {
	s = c.bugs.view(c, "scheduling", s)
	mirrors := store.MirrorOptions{MaxBackoff: 5 * time.Second, Jitter: -1}
	a := &scheduler{
		cluster: c, process: process, store: s, changed: make(chan struct{}, 1), known: map[types.UID]*placing{},
		pods: store.NewMirror[*v1.Pod](s, mirrors), nodes: store.NewMirror[*v1.Node](s, mirrors),
	}
	a.volumes = scheduling.New(s, scheduling.Options{BindTimeout: 30 * time.Second, Mirrors: mirrors, Changed: a.clusterChanged})
	var all sync.WaitGroup
	all.Go(func() { _ = a.volumes.Run(workerContext{ctx, c, process}) })
	all.Go(func() { a.pods.Follow(workerContext{ctx, c, process + " of pods"}, func(*v1.Pod) { a.wake() }) })
	all.Go(func() {
		a.nodes.Follow(workerContext{ctx, c, process + " of nodes"}, func(*v1.Node) { a.nodeChanged() })
	})
	all.Go(func() { a.place(ctx) })
	all.Wait()
	a.binding.Wait()
	return nil
}

func (a *scheduler) wake() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// clusterChanged has the pods looked at again whose wait a change may end.
func (a *scheduler) clusterChanged(event scheduling.ClusterEvent) {
	a.retry(func(p *placing) bool { return p.waits.EndedBy(event) })
}

func (a *scheduler) nodeChanged() {
	a.retry(func(p *placing) bool { return p.anyNode })
}

func (a *scheduler) retry(isEnded func(p *placing) bool) {
	a.mu.Lock()
	for uid, p := range a.known {
		if !p.binds && isEnded(p) {
			delete(a.known, uid)
		}
	}
	a.mu.Unlock()
	a.wake()
}

// place looks at the pods without a node that are not known until ctx ends.
func (a *scheduler) place(ctx context.Context) {
	if !a.volumes.WaitSynced(ctx) || !a.pods.WaitSynced(ctx) || !a.nodes.WaitSynced(ctx) {
		return
	}
	for {
		if !a.cluster.turns.TakeUnless(ctx, a.process+" looks at the pods") {
			return
		}
		pods := a.pods.All()
		slices.SortFunc(pods, func(x, y *v1.Pod) int { return strings.Compare(x.Name, y.Name) })
		for _, pod := range pods {
			if pod.Spec.NodeName == "" {
				a.placeOne(ctx, pod)
			}
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			return
		}
	}
}

// placeOne reserves a node for a pod and begins to bind its claims, or keeps what the pod waits for.
func (a *scheduler) placeOne(ctx context.Context, pod *v1.Pod) {
	a.mu.Lock()
	known := a.known[pod.UID] != nil
	a.mu.Unlock()
	if known {
		return
	}
	keep := func(p placing) {
		a.mu.Lock()
		a.known[pod.UID] = &p
		a.mu.Unlock()
	}
	result, err := a.volumes.Find(pod)
	var refused *scheduling.PodError
	if errors.As(err, &refused) {
		keep(placing{waits: refused.Waits()})
		return
	}
	node := a.choose(result)
	if node == "" {
		keep(placing{waits: result.Waits(), anyNode: true})
		return
	}
	reservation, err := a.volumes.Reserve(pod, node)
	if err != nil {
		// What Reserve sees is what Find saw, apart from other pods of that name, whose end the mirror of pods tells.
		a.cluster.note("%s does not reserve %s for %s: %v", a.process, node, pod.Name, err)
		return
	}
	a.cluster.note("%s places %s with UID %s on %s", a.process, pod.Name, pod.UID, node)
	keep(placing{binds: true})
	a.binding.Go(func() {
		if !a.bind(context.WithValue(ctx, forPod{}, pod.Name), pod, reservation) {
			sleep(ctx, time.Second)
		}
		a.mu.Lock()
		delete(a.known, pod.UID)
		a.mu.Unlock()
		a.wake()
	})
}

// choose returns one of the nodes that are well and can have the volumes of a pod, "" for none.
func (a *scheduler) choose(result *scheduling.Result) string {
	var nodes []string
	for _, node := range a.nodes.All() {
		if isReady(node) && !isFenced(node) && result.Why(node.Name) == nil {
			nodes = append(nodes, node.Name)
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	slices.Sort(nodes)
	return nodes[a.cluster.luck(len(nodes))]
}

// bind has the claims of a pod bound for its node, and gives it the node then. It returns false if the pod must be placed anew.
func (a *scheduler) bind(ctx context.Context, pod *v1.Pod, r *scheduling.Reservation) bool {
	var err error
	if !a.cluster.bugs.noBind {
		err = r.Bind(ctx)
	}
	if err != nil {
		a.cluster.note("%s does not bind %s for %s: %v", a.process, pod.Name, r.Node(), err)
		if errors.Is(err, scheduling.ErrPlaceAnew) {
			a.cluster.count("placed anew")
		}
		r.Release()
		return false
	}
	for ctx.Err() == nil {
		known, err := a.assign(ctx, pod, r.Node())
		a.cluster.note("%s gives %s to %s: %v, %v", a.process, r.Node(), pod.Name, known, err)
		if known {
			break
		}
		// Whether the pod has the node is not known: the reservation stays until it is.
		sleep(ctx, time.Second)
	}
	return true
}

// assign writes the node of a pod, and reports whether it is known what the pod has.
func (a *scheduler) assign(ctx context.Context, pod *v1.Pod, node string) (known bool, err error) {
	now, err := store.Get[*v1.Pod](ctx, a.store, pod.Namespace, pod.Name)
	if errors.Is(err, store.ErrNotFound) || err == nil && (now.UID != pod.UID || now.Spec.NodeName != "") {
		return true, err
	}
	if err != nil {
		return false, err
	}
	now.Spec.NodeName = node
	_, err = store.Update(ctx, a.store, now)
	return err == nil, err
}
