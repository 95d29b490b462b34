package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/volumekit/volumekit/store"
)

// Options are the options of [New]. The zero value is useful.
type Options struct {
	// Only limits the objects that List and Watch return of a kind, by fields that the API server can select. The agent of a node can
	// so get only its own node (metadata.name) and its own pods (spec.nodeName). An object that is not selected any more is a deletion.
	// Kinds that are not in the map are not limited. Get and the writes are never limited.
	Only map[schema.GroupVersionKind]fields.Selector
	// Informers are the sources of the watches of their kinds. So a program with its own informers does not watch twice, and several
	// watches of a kind are one watch of the API server. The caller starts the informers, and must not stop them before the last user
	// of the store has ended. A watch has only the objects that the informer lists: Only must have the same selectors, so that lists
	// agree. If an informer was cut off for long and has listed again, several writes to one object may be one event.
	Informers map[schema.GroupVersionKind]cache.SharedInformer
	// Kinds are the kinds that the store keeps; nil means those of [store.Kinds].
	Kinds *store.KindTable
	// Resources are the clients of those Kinds that are not in k8s.io/api. If one is missing, [New] returns an error.
	Resources map[schema.GroupVersionKind]Resource
	// Logger logs why watches resume; nil discards that.
	Logger *slog.Logger
}

// Store is a [store.Store] on a Kubernetes API server. Make it with [New]. Its methods may be called from several goroutines at
// once.
type Store struct {
	kinds     *store.KindTable
	resources map[schema.GroupVersionKind]func(namespace string) resource
	only      map[schema.GroupVersionKind]fields.Selector
	feeds     map[schema.GroupVersionKind]*feed
	logger    *slog.Logger
}

var _ store.Store = (*Store)(nil)

// New returns the store on the API server of client. It does no I/O and starts nothing. If the client is missing, the error matches
// [store.ErrInvalid].
func New(client Client, options Options) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("store on Kubernetes: give a client: %w", store.ErrInvalid)
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		kinds: options.Kinds, resources: resourcesOf(client), only: maps.Clone(options.Only), logger: options.Logger, feeds: map[schema.GroupVersionKind]*feed{},
	}
	for kind, r := range options.Resources {
		s.resources[kind] = func(namespace string) resource { return r.in(s.kinds, namespace) }
	}
	for _, kind := range s.kinds.Kinds() {
		if s.resources[kind] == nil {
			return nil, fmt.Errorf("store on Kubernetes: give the client of kind %q in Options.Resources: %w", kind, store.ErrInvalid)
		}
	}
	for kind, informer := range options.Informers {
		s.feeds[kind] = &feed{kinds: s.kinds, kind: kind, informer: informer}
	}
	return s, nil
}

// resourceOf returns the client for the objects of a kind in a namespace.
func (s *Store) resourceOf(kind schema.GroupVersionKind, namespace string) (resource, error) {
	if _, err := s.kinds.Namespaced(kind); err != nil {
		return nil, err
	}
	return s.resources[kind](namespace), nil
}

// selected returns the options of a list or a watch of a kind.
func (s *Store) selected(kind schema.GroupVersionKind) metav1.ListOptions {
	if only, limited := s.only[kind]; limited {
		return metav1.ListOptions{FieldSelector: only.String()}
	}
	return metav1.ListOptions{}
}

// Kinds returns the kinds that the store keeps.
func (s *Store) Kinds() *store.KindTable { return s.kinds }

// Get implements [store.Store]. It reads from the API server, which returns the last written version.
func (s *Store) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if err := errors.Join(ctx.Err(), s.kinds.ValidateKey(key)); err != nil {
		return nil, err
	}
	obj, err := s.resources[key.Kind](key.Namespace).get(ctx, key.Name)
	if err != nil {
		return nil, classify(ctx, "read "+key.String(), err)
	}
	return obj, nil
}

// Create implements [store.Store]. The API server ignores the status of a new object, and chooses its UID. So Create writes a status in a
// second call, and refuses an object with a UID: the error matches [store.ErrInvalid].
func (s *Store) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	wanted, key, err := s.accept(obj)
	if err == nil {
		err = errors.Join(ctx.Err(), checkNew(key, wanted))
	}
	if err != nil {
		return nil, err
	}
	r := s.resources[key.Kind](key.Namespace)
	created, err := r.create(ctx, wanted)
	if err != nil {
		return nil, classify(ctx, "create "+key.String(), err)
	}
	if !saysStatus(wanted) || sameStatus(created, wanted) {
		return created, nil
	}
	updated, err := r.updateStatus(ctx, joined(created, wanted))
	if err != nil {
		return nil, classify(ctx, key.String()+" is created, its status is not written", err)
	}
	return updated, nil
}

// accept checks the object of a writer, and returns a copy.
func (s *Store) accept(obj runtime.Object) (store.Object, store.Key, error) {
	key, _, err := s.kinds.Validate(obj)
	if err != nil {
		return nil, store.Key{}, err
	}
	return copyOf(obj.(store.Object)), key, nil //nolint:forcetypeassert // Every kind that a store keeps is one.
}

func checkNew(key store.Key, obj store.Object) error {
	if obj.GetResourceVersion() != "" {
		return fmt.Errorf("%s has a resource version already: take it away, or update: %w", key, store.ErrInvalid)
	}
	if obj.GetUID() != "" {
		return fmt.Errorf("%s has a UID, and the API server gives it another: take it away, and from what refers to it: %w",
			key, store.ErrInvalid)
	}
	return nil
}

// Delete implements [store.Store]. A running pod has its grace period: it stays, with its deletion time set, until its node has ended it.
func (s *Store) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	if err := errors.Join(ctx.Err(), s.kinds.ValidateKey(key)); err != nil {
		return err
	}
	err := s.resources[key.Kind](key.Namespace).delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: given(preconditions.UID), ResourceVersion: given(preconditions.ResourceVersion),
	}})
	if err != nil {
		return classify(ctx, "delete "+key.String(), err)
	}
	return nil
}

// given returns nil for an empty value.
func given[T types.UID | string](value T) *T {
	if value == "" {
		return nil
	}
	return &value
}

// pageSize is how many objects one request reads.
const pageSize = 500

// List implements [store.Store]. It asks the API server; all pages of a long list are true at one version.
func (s *Store) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	r, err := s.resourceOf(kind, namespace)
	if err = errors.Join(ctx.Err(), err); err != nil {
		return store.List{}, err
	}
	if f := s.feeds[kind]; f != nil { // So that a watch can go on from what is listed here.
		if err := f.ready(ctx); err != nil {
			return store.List{}, err
		}
	}
	var objects []store.Object
	options := s.selected(kind)
	for options.Limit = pageSize; ; {
		p, err := r.list(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" && ctx.Err() == nil {
			objects, options.Continue = nil, "" // The reader was slow.
			continue
		}
		if err != nil {
			return store.List{}, classify(ctx, "list "+kind.Kind, err)
		}
		objects = append(objects, p.objects...)
		if options.Continue = p.more; p.more == "" {
			return listOf(objects, p.version), nil
		}
	}
}

// listOf sorts objects by namespace and name, which no API server promises.
func listOf(objects []store.Object, version string) store.List {
	slices.SortFunc(objects, func(a, b store.Object) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	list := store.List{Items: make([]runtime.Object, 0, len(objects)), ResourceVersion: version}
	for _, obj := range objects {
		list.Items = append(list.Items, obj)
	}
	return list
}
