package store

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Load creates every object in s, in the order given, and returns them as stored. An object of a namespaced kind that
// names no namespace goes into "default"; a resource version that was exported with an object is dropped. Nothing is
// created when any object is malformed (the error matches [ErrInvalid]) or two have one name (it matches
// [ErrAlreadyExists]). When the store refuses one, those before it have been created and are returned too.
func Load(ctx context.Context, s Store, objects []runtime.Object) ([]runtime.Object, error) {
	prepared, err := prepareAll(KindsOf(s), objects)
	if err != nil {
		return nil, err
	}
	created := make([]runtime.Object, 0, len(prepared))
	for _, obj := range prepared {
		stored, err := s.Create(ctx, obj)
		if err != nil {
			return created, fmt.Errorf("load: %w", err)
		}
		created = append(created, stored)
	}
	return created, nil
}

// prepareAll returns copies of objects that a store can be given.
func prepareAll(kinds *KindTable, objects []runtime.Object) ([]Object, error) {
	prepared := make([]Object, 0, len(objects))
	seen := make(map[Key]bool, len(objects))
	for i, obj := range objects {
		copied, key, err := prepareLoad(kinds, obj)
		if err != nil {
			return nil, fmt.Errorf("object %d: %w", i+1, err)
		}
		if seen[key] {
			return nil, fmt.Errorf("object %d: %s is given twice: take one away: %w", i+1, key, ErrAlreadyExists)
		}
		seen[key] = true
		prepared = append(prepared, copied)
	}
	return prepared, nil
}

func prepareLoad(kinds *KindTable, obj runtime.Object) (Object, Key, error) {
	key, err := kinds.KeyOf(obj)
	if err != nil {
		return nil, Key{}, err
	}
	copied, err := as[Object](obj.DeepCopyObject(), nil)
	if err != nil {
		return nil, Key{}, err
	}
	namespaced, err := kinds.Namespaced(key.Kind)
	if err != nil {
		return nil, Key{}, err
	}
	if namespaced && key.Namespace == "" {
		key.Namespace = v1.NamespaceDefault
		copied.SetNamespace(key.Namespace)
	}
	copied.SetResourceVersion("")
	return copied, key, kinds.ValidateKey(key)
}
