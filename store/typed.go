package store

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is a pointer to a type that a store keeps, such as *v1.PersistentVolume.
type Object interface {
	runtime.Object
	metav1.Object
}

// Get returns the object of type T with that namespace ("" for a kind without) and name. Errors are those of the store.
func Get[T Object](ctx context.Context, s Store, namespace, name string) (T, error) {
	var zero T
	kind, err := KindsOf(s).KindOf(zero)
	if err != nil {
		return zero, err
	}
	obj, err := s.Get(ctx, Key{Kind: kind, Namespace: namespace, Name: name})
	return as[T](obj, err)
}

// ListOf returns all objects of type T in a namespace ("" means all) in the order of their keys, and the version from
// which a watch goes on.
func ListOf[T Object](ctx context.Context, s Store, namespace string) (items []T, version string, err error) {
	var zero T
	kind, err := KindsOf(s).KindOf(zero)
	if err != nil {
		return nil, "", err
	}
	list, err := s.List(ctx, kind, namespace)
	if err != nil {
		return nil, "", err
	}
	items = make([]T, 0, len(list.Items))
	for _, obj := range list.Items {
		item, err := as[T](obj, nil)
		if err != nil {
			return nil, "", err
		}
		items = append(items, item)
	}
	return items, list.ResourceVersion, nil
}

// Create stores a new object and returns it as stored. Errors are those of the store.
func Create[T Object](ctx context.Context, s Store, obj T) (T, error) {
	created, err := s.Create(ctx, obj)
	return as[T](created, err)
}

// Update replaces an object whose resource version is still that of obj and returns it as stored. Errors are those of
// the store.
func Update[T Object](ctx context.Context, s Store, obj T) (T, error) {
	updated, err := s.Update(ctx, obj)
	return as[T](updated, err)
}

// Delete deletes obj if it is still the very object that was read: an object of the same name with another UID is left
// alone, with an error that matches [ErrConflict]. Changes that others made meanwhile do not hinder it. An obj without a
// UID was not read from a store, and is an error that matches [ErrInvalid].
func Delete[T Object](ctx context.Context, s Store, obj T) error {
	key, err := KindsOf(s).KeyOf(obj)
	if err != nil {
		return err
	}
	if obj.GetUID() == "" {
		return fmt.Errorf("%s has no UID: read it before you delete it: %w", key, ErrInvalid)
	}
	return s.Delete(ctx, key, Preconditions{UID: obj.GetUID()})
}

func as[T Object](obj runtime.Object, err error) (T, error) {
	var zero T
	if err != nil {
		return zero, err
	}
	typed, ok := obj.(T)
	if !ok {
		return zero, fmt.Errorf("the store returned %T where %T was asked for: %w", obj, zero, ErrInvalid)
	}
	return typed, nil
}
