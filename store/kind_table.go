package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of object that is not in k8s.io/api.
type Kind struct {
	// GroupVersionKind is the object's group, version and kind.
	GroupVersionKind schema.GroupVersionKind
	// Object is an object of its Go type: a pointer to a struct that encoding/json can write and read. It has no time in a map.
	Object Object
	// Namespaced says that each object lives in a namespace.
	Namespaced bool
}

// KindTable is the kinds that a store keeps: those of [Kinds], and those with which it was made. It never changes. A nil table
// has those of [Kinds] alone. A store takes a table as an option, and reports it by a method Kinds: see [KindsOf].
type KindTable struct {
	all []knownKind // sorted by name; knownKinds among them
}

// NewKindTable returns the table of [Kinds] and of more. A kind whose name or Go type the table has already, in whatever group,
// is an error that matches [ErrInvalid].
func NewKindTable(more ...Kind) (*KindTable, error) {
	t := &KindTable{all: slices.Clone(knownKinds[:])}
	for _, k := range more {
		if err := t.check(k); err != nil {
			return nil, fmt.Errorf("kind %q of %T: %w: %w", k.GroupVersionKind, k.Object, err, ErrInvalid)
		}
		t.all = append(t.all, knownKind{kind: k.GroupVersionKind, object: k.Object, namespaced: k.Namespaced})
	}
	slices.SortStableFunc(t.all, func(a, b knownKind) int { return strings.Compare(a.kind.Kind, b.kind.Kind) })
	return t, nil
}

func (t *KindTable) check(k Kind) error {
	typ := reflect.TypeOf(k.Object)
	switch {
	case k.GroupVersionKind.Version == "" || k.GroupVersionKind.Kind == "" || strings.Contains(k.GroupVersionKind.Kind, "/"):
		return errIncompleteKind
	case typ == nil || typ.Kind() != reflect.Pointer || typ.Elem().Kind() != reflect.Struct:
		return errKindType
	case slices.ContainsFunc(t.all, func(known knownKind) bool {
		return known.kind.Kind == k.GroupVersionKind.Kind || reflect.TypeOf(known.object) == typ
	}):
		return errKindTwice
	}
	return nil
}

// kindTable is implemented by a store that was made with a table.
type kindTable interface{ Kinds() *KindTable }

// KindsOf returns the table of a store: what its method Kinds returns, and nil, which has those of the function [Kinds], for a store
// that has no such method. A store around another has that method only if it passes it on.
func KindsOf(s Store) *KindTable {
	if has, ok := s.(kindTable); ok {
		return has.Kinds()
	}
	return nil
}

// rows returns the rows of the table.
func (t *KindTable) rows() []knownKind {
	if t == nil {
		return knownKinds[:]
	}
	return t.all
}

// Kinds returns every kind of the table, sorted by name.
func (t *KindTable) Kinds() []schema.GroupVersionKind {
	kinds := make([]schema.GroupVersionKind, 0, len(t.rows()))
	for _, k := range t.rows() {
		kinds = append(kinds, k.kind)
	}
	return kinds
}

// KindOf is the function [KindOf] for the kinds of the table.
func (t *KindTable) KindOf(obj runtime.Object) (schema.GroupVersionKind, error) {
	typ := reflect.TypeOf(obj)
	for _, k := range t.rows() {
		if reflect.TypeOf(k.object) == typ {
			return k.kind, nil
		}
	}
	return schema.GroupVersionKind{}, fmt.Errorf("%T is none of the kinds that the store keeps (%s): %w", obj, t.names(), ErrInvalid)
}

// Namespaced is the function [Namespaced] for the kinds of the table.
func (t *KindTable) Namespaced(kind schema.GroupVersionKind) (bool, error) {
	for _, k := range t.rows() {
		if k.kind == kind {
			return k.namespaced, nil
		}
	}
	return false, fmt.Errorf("kind %q is none of those that the store keeps (%s): %w", kind, t.names(), ErrInvalid)
}

// KeyOf is the function [KeyOf] for the kinds of the table.
func (t *KindTable) KeyOf(obj runtime.Object) (Key, error) {
	kind, err := t.KindOf(obj)
	if err != nil {
		return Key{}, err
	}
	if reflect.ValueOf(obj).IsNil() {
		return Key{}, fmt.Errorf("%s is nil: %w", kind.Kind, ErrInvalid)
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return Key{}, fmt.Errorf("%T has no metadata: %w", obj, ErrInvalid)
	}
	return Key{Kind: kind, Namespace: meta.GetNamespace(), Name: meta.GetName()}, nil
}

// NewScheme returns a new scheme of apimachinery that knows the kinds of the table, for codecs.
func (t *KindTable) NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, k := range t.rows() {
		scheme.AddKnownTypeWithName(k.kind, k.object)
	}
	return scheme
}

// newObject returns a new, empty object of a kind; nil for one that is not in the table.
func (t *KindTable) newObject(kind schema.GroupVersionKind) Object {
	for _, k := range t.rows() {
		if k.kind == kind {
			obj, _ := reflect.TypeAssert[Object](reflect.New(reflect.TypeOf(k.object).Elem()))
			return obj
		}
	}
	return nil
}

func (t *KindTable) names() string {
	names := make([]string, 0, len(t.rows()))
	for _, k := range t.rows() {
		names = append(names, k.kind.Kind)
	}
	return strings.Join(names, ", ")
}
