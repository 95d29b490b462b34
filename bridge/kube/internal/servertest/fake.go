// Package servertest has API servers for tests of stores on Kubernetes: one for client-go's fake clients, and the real one, which
// `make test-kube` builds.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coordinationfake "k8s.io/client-go/kubernetes/typed/coordination/v1/fake"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	corefake "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	storageclient "k8s.io/client-go/kubernetes/typed/storage/v1"
	storagefake "k8s.io/client-go/kubernetes/typed/storage/v1/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/volumekit/volumekit/store"
)

// Clients are those groups of client-go's fake clientset that a store uses: the whole of it takes as long again to compile.
type Clients struct{ clienttesting.Fake }

func (c *Clients) CoreV1() coreclient.CoreV1Interface { return &corefake.FakeCoreV1{Fake: &c.Fake} }

func (c *Clients) StorageV1() storageclient.StorageV1Interface {
	return &storagefake.FakeStorageV1{Fake: &c.Fake}
}

func (c *Clients) CoordinationV1() coordinationclient.CoordinationV1Interface {
	return &coordinationfake.FakeCoordinationV1{Fake: &c.Fake}
}

// Server answers for client-go's fake clientset, whose own tracker knows no versions: no conflicts, no watch from a version, no
// status that is written apart. It keeps its objects in a store in memory, and adds what an API server does otherwise than a store.
// What it cannot show is what only the real one does: validation, defaults, and that several requests are served at once, because
// client-go's fake takes one after the other.
type Server struct {
	// Memory has the objects of the server.
	Memory *store.Memory
	// PerPage is how many objects a page of a list has at most; 0 means as many as were asked for. Set it before the server is used.
	PerPage int

	t      *testing.T
	scheme *runtime.Scheme
	kinds  map[string]schema.GroupVersionKind // by resource

	mu      sync.Mutex
	pages   map[string][]store.Object // the rest of lists, by the token
	watches []*served                 // that were begun
	amnesia bool                      // whether every watch from now on is from too old a version
}

// New returns an API server that has kinds, and the fake clientset that speaks to it. The scheme knows the lists of the kinds.
func New(t *testing.T, kinds *store.KindTable, scheme *runtime.Scheme) (*Server, *Clients) {
	t.Helper()
	s := &Server{
		Memory: store.NewMemory(store.MemoryOptions{History: History, Kinds: kinds}), t: t, scheme: scheme,
		kinds: map[string]schema.GroupVersionKind{}, pages: map[string][]store.Object{},
	}
	for _, kind := range kinds.Kinds() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		s.kinds[plural.Resource] = kind
	}
	s.Forget(1) // No API server is at version zero.
	clients := &Clients{}
	clients.PrependReactor("*", "*", s.react)
	clients.PrependWatchReactor("*", s.watch)
	return s, clients
}

// History is how many writes the server remembers at least.
const History = 256

// Forget makes writes until what was before them is forgotten, or only so many.
func (s *Server) Forget(writes int) {
	s.t.Helper()
	for i := range writes {
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("passing-%d", i)}}
		_, err := s.Memory.Create(s.t.Context(), pv)
		require.NoError(s.t, err)
		require.NoError(s.t, s.Memory.Delete(s.t.Context(), store.Key{Kind: store.PersistentVolumes, Name: pv.Name}, store.Preconditions{}))
	}
}

// react implements testing.ReactionFunc.
func (s *Server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	kind, known := s.kinds[action.GetResource().Resource]
	if !known {
		return false, nil, nil
	}
	key := store.Key{Kind: kind, Namespace: action.GetNamespace()}
	var obj runtime.Object
	var err error
	switch a := action.(type) {
	case clienttesting.UpdateActionImpl:
		obj, err = s.update(key, a)
	case clienttesting.CreateActionImpl:
		obj, err = s.create(a)
	case clienttesting.GetActionImpl:
		key.Name = a.Name
		obj, err = s.Memory.Get(s.t.Context(), key)
	case clienttesting.DeleteActionImpl:
		key.Name = a.Name
		err = s.delete(key, a.DeleteOptions)
	case clienttesting.ListActionImpl:
		obj, err = s.list(kind, a)
	default:
		err = fmt.Errorf("%T is none of the requests of a store", action)
	}
	if err != nil {
		return true, nil, answer(action.GetResource().GroupResource(), key.Name, err)
	}
	return true, obj, nil
}

// answer turns an error of a store into that of an API server.
func answer(resource schema.GroupResource, name string, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(resource, name)
	case errors.Is(err, store.ErrAlreadyExists):
		return apierrors.NewAlreadyExists(resource, name)
	case errors.Is(err, store.ErrConflict):
		return apierrors.NewConflict(resource, name, err)
	case errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired(err.Error())
	case errors.Is(err, store.ErrInvalid):
		return apierrors.NewInvalid(schema.GroupKind{Kind: resource.Resource}, name, nil)
	}
	return err
}

// create takes no status and no UID.
func (s *Server) create(a clienttesting.CreateActionImpl) (runtime.Object, error) {
	obj := a.GetObject().DeepCopyObject().(store.Object)
	if obj.GetResourceVersion() != "" {
		return nil, store.ErrInvalid
	}
	setStatus(obj, newOf(obj))
	obj.SetUID("")
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "test", Operation: metav1.ManagedFieldsOperationUpdate}})
	switch o := obj.(type) {
	case *v1.PersistentVolume:
		o.Status.Phase = v1.VolumePending
	case *v1.PersistentVolumeClaim:
		o.Status.Phase = v1.ClaimPending
	}
	return s.Memory.Create(s.t.Context(), obj)
}

// update writes the status or the rest, and nothing if that is what is there.
func (s *Server) update(key store.Key, a clienttesting.UpdateActionImpl) (runtime.Object, error) {
	given := a.GetObject().DeepCopyObject().(store.Object)
	key.Name = given.GetName()
	found, err := s.Memory.Get(s.t.Context(), key)
	if err != nil {
		if key.Kind == store.Leases && errors.Is(err, store.ErrNotFound) {
			return nil, store.ErrConflict // The server would create it, were it not for the UID.
		}
		return nil, err
	}
	now := found.(store.Object)
	if given.GetUID() != "" && given.GetUID() != now.GetUID() {
		return nil, store.ErrConflict
	}
	changed := given
	if a.Subresource == "status" {
		changed = now.DeepCopyObject().(store.Object)
		setStatus(changed, given)
		changed.SetResourceVersion(given.GetResourceVersion())
	} else {
		setStatus(changed, now)
	}
	changed.SetManagedFields(now.GetManagedFields())
	changed.GetObjectKind().SetGroupVersionKind(key.Kind)
	if apiequality.Semantic.DeepEqual(changed, now) {
		return now, nil
	}
	return s.Memory.Update(s.t.Context(), changed)
}

func (s *Server) delete(key store.Key, options metav1.DeleteOptions) error {
	var p store.Preconditions
	if options.Preconditions != nil && options.Preconditions.UID != nil {
		p.UID = *options.Preconditions.UID
	}
	if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
		p.ResourceVersion = *options.Preconditions.ResourceVersion
	}
	return s.Memory.Delete(s.t.Context(), key, p)
}

// list answers in pages, the order of whose objects is none.
func (s *Server) list(kind schema.GroupVersionKind, a clienttesting.ListActionImpl) (runtime.Object, error) {
	if a.ListOptions.ResourceVersion != "" { // It is asked whether that is known.
		ctx, cancel := context.WithCancel(s.t.Context())
		defer cancel()
		if _, err := s.Memory.Watch(ctx, kind, a.Namespace, a.ListOptions.ResourceVersion); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	version, _, _ := strings.Cut(a.ListOptions.Continue, "/")
	rest, begun := s.pages[a.ListOptions.Continue]
	if !begun && a.ListOptions.Continue != "" {
		return nil, store.ErrCompacted
	}
	if !begun {
		all, err := s.Memory.List(s.t.Context(), kind, a.Namespace)
		if err != nil {
			return nil, err
		}
		version = all.ResourceVersion
		for _, item := range slices.Backward(all.Items) {
			rest = append(rest, item.(store.Object))
		}
	}
	more := ""
	if limit := min(int(a.ListOptions.Limit), s.PerPage); limit > 0 && len(rest) > limit {
		more = fmt.Sprintf("%s/%d", version, len(rest))
		s.pages[more] = rest[limit:]
		rest = rest[:limit]
	}
	return s.listOf(kind, rest, version, more)
}

func (s *Server) listOf(kind schema.GroupVersionKind, objects []store.Object, version, more string) (runtime.Object, error) {
	list, err := s.scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil {
		return nil, err
	}
	items := make([]runtime.Object, 0, len(objects))
	for _, obj := range objects {
		items = append(items, obj)
	}
	listMeta := list.(metav1.ListInterface)
	listMeta.SetResourceVersion(version)
	listMeta.SetContinue(more)
	return list, meta.SetList(list, items)
}

// served is one watch of the server.
type served struct {
	kind    schema.GroupVersionKind
	version string
	events  chan watch.Event
	cancel  context.CancelFunc
}

func (w *served) Stop()                          { w.cancel() }
func (w *served) ResultChan() <-chan watch.Event { return w.events }

// watch implements testing.WatchReactionFunc. That a version is forgotten is told by the first event, as the real one does.
func (s *Server) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	kind, known := s.kinds[action.GetResource().Resource]
	if !known {
		return false, nil, nil
	}
	options := action.(clienttesting.WatchActionImpl).ListOptions
	if options.SendInitialEvents != nil { // As servers did before they could; informers list, then.
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: kind.Kind}, "", nil)
	}
	version := options.ResourceVersion
	ctx, cancel := context.WithCancel(s.t.Context())
	w := &served{kind: kind, version: version, events: make(chan watch.Event), cancel: cancel}
	s.mu.Lock()
	s.watches = append(s.watches, w)
	amnesia := s.amnesia
	s.mu.Unlock()
	events, err := s.Memory.Watch(ctx, kind, action.GetNamespace(), version)
	if amnesia {
		err = store.ErrCompacted
	}
	go func() {
		defer close(w.events)
		defer cancel()
		if err != nil {
			status := apierrors.NewResourceExpired(err.Error()).Status()
			w.send(ctx, watch.Event{Type: watch.Error, Object: &status})
			return
		}
		for event := range events {
			w.send(ctx, watch.Event{Type: watch.EventType(strings.ToUpper(string(event.Type))), Object: event.Object})
		}
	}()
	return true, w, nil
}

func (w *served) send(ctx context.Context, event watch.Event) {
	select {
	case w.events <- event:
	case <-ctx.Done():
	}
}

// Cut ends all watches, as the server does now and then.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		w.cancel()
	}
}

// ForgetNext has every watch from now on be told that its version is too old.
func (s *Server) ForgetNext() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.amnesia = true
}

// Tell sends an event to the watch that was begun last.
func (s *Server) Tell(event watch.Event) {
	s.mu.Lock()
	w := s.watches[len(s.watches)-1]
	s.mu.Unlock()
	w.send(s.t.Context(), event)
}

// Begun returns the versions from which watches of volumes were begun.
func (s *Server) Begun() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var versions []string
	for _, w := range s.watches {
		if w.kind == store.PersistentVolumes {
			versions = append(versions, w.version)
		}
	}
	return versions
}

// setStatus gives obj the status of another object of its type, if its kind has one.
func setStatus(obj, from store.Object) {
	if status := reflect.ValueOf(obj).Elem().FieldByName("Status"); status.IsValid() {
		status.Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	}
}

func newOf(obj store.Object) store.Object {
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(store.Object)
}
