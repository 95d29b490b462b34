package volumemanager

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedStatus is the store of a simulated world as one process sees it: the objects of nodes have the status that the
// world says they have. What is read is true; what is watched comes when the driver likes, or not at all.
type simulatedStatus struct {
	store.Store
	p     *sim.Process
	turn  *sync.Mutex // of those who write the objects of nodes
	blind bool        // no news of the node
	deaf  bool        // no news of PersistentVolumes
}

// sync makes the object of a node what the world says of it.
func (s *simulatedStatus) sync(ctx context.Context, name string) {
	s.turn.Lock()
	defer s.turn.Unlock()
	attached, err := s.p.VolumesAttached(ctx, types.NodeName(name))
	must(err)
	inUse, err := s.p.VolumesInUse(ctx, types.NodeName(name))
	must(err)
	node, err := store.Get[*v1.Node](ctx, s.Store, "", name)
	if ctx.Err() != nil {
		return
	}
	if errors.Is(err, store.ErrNotFound) {
		_, err = s.Store.Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		must(err)
		node, err = s.signed(ctx, name)
	}
	must(err)
	if maps.Equal(store.DevicesOf(node.Status.VolumesAttached), attached) && slices.Equal(node.Status.VolumesInUse, inUse) {
		return
	}
	node.Status.VolumesAttached, node.Status.VolumesInUse = nil, inUse
	for _, v := range slices.Sorted(maps.Keys(attached)) {
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, v1.AttachedVolume{Name: v, DevicePath: attached[v]})
	}
	_, err = s.Store.Update(ctx, node)
	must(err)
}

// signed returns the new object of a node as one that the node has signed: when it does that is not what is simulated.
func (s *simulatedStatus) signed(ctx context.Context, name string) (*v1.Node, error) {
	node, err := store.Get[*v1.Node](ctx, s.Store, "", name)
	if err != nil {
		return nil, err
	}
	node.Annotations = map[string]string{store.AnnVolumesInUseOf: string(node.UID)}
	return store.Update(ctx, s.Store, node)
}

// Get implements store.Store.
func (s *simulatedStatus) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if key.Kind == store.Nodes {
		s.sync(ctx, key.Name)
	}
	return s.Store.Get(ctx, key)
}

// List implements store.Store.
func (s *simulatedStatus) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if kind == store.Nodes {
		s.sync(ctx, s.p.Node())
	}
	return s.Store.List(ctx, kind, namespace)
}

// Update implements store.Store.
func (s *simulatedStatus) Update(ctx context.Context, obj runtime.Object) (written runtime.Object, err error) {
	node, ok := obj.(*v1.Node)
	if !ok {
		return s.Store.Update(ctx, obj)
	}
	err = s.p.WriteInUse(func() ([]v1.UniqueVolumeName, error) {
		s.turn.Lock()
		defer s.turn.Unlock()
		written, err = s.Store.Update(ctx, obj)
		return node.Status.VolumesInUse, err
	})
	return written, err
}

// Watch implements store.Store.
func (s *simulatedStatus) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	events, err := s.Store.Watch(ctx, kind, namespace, version)
	if err == nil && s.deaf && kind == store.PersistentVolumes {
		silence := make(chan store.Event)
		context.AfterFunc(ctx, func() { close(silence) })
		return silence, nil
	}
	if err != nil || kind != store.Nodes {
		return events, err
	}
	seen := make(chan store.Event)
	go s.show(ctx, events, seen)
	return seen, nil
}

// show passes on what the driver lets be seen, until ctx ends or the sight is lost.
func (s *simulatedStatus) show(ctx context.Context, events <-chan store.Event, seen chan<- store.Event) {
	defer close(seen)
	for event := range events {
		if node, ok := event.Object.(*v1.Node); !ok || node.Name != s.p.Node() || s.blind {
			continue
		}
		sight := make(chan bool, 1)
		go func() { sight <- s.p.AwaitSight() }()
		select {
		case goesOn := <-sight:
			if !goesOn {
				return
			}
		case <-ctx.Done():
			return
		}
		select {
		case seen <- event:
		case <-ctx.Done():
			return
		}
	}
}

// simulatedReporter is an orchestrator that writes the status of its node itself, later.
type simulatedReporter struct {
	mu   sync.Mutex
	due  bool
	list []v1.UniqueVolumeName
}

// ReportVolumesInUse implements VolumesInUseReporter.
func (r *simulatedReporter) ReportVolumesInUse(_ context.Context, volumes []v1.UniqueVolumeName) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due, r.list = true, volumes
	return ErrReportedLater
}

// next returns what is to be written next, or what is there.
func (r *simulatedReporter) next(there []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.due {
		return there
	}
	return r.list
}
