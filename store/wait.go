package store

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WaitForNone returns when the store holds no object of type T for which unwanted is true. After a claim was deleted, for
// example, its controller still has to delete the volume:
//
//	err := store.WaitForNone(ctx, s, func(pv *v1.PersistentVolume) bool { return pv.Spec.ClaimRef != nil })
//
// It reads all objects of the type once and then again after each change; it never polls. When ctx ends, the error matches what
// ended it and names one object that is left. Errors of the store end the wait.
func WaitForNone[T Object](ctx context.Context, s Store, unwanted func(T) bool) error {
	for {
		objects, version, err := ListOf[T](ctx, s, metav1.NamespaceAll)
		if err != nil {
			return err
		}
		left := first(KindsOf(s), objects, unwanted)
		if left == "" {
			return nil
		}
		if err := waitForChange[T](ctx, s, version); err != nil {
			return fmt.Errorf("wait until %s is gone: %w", left, err)
		}
	}
}

// first names the first object that is unwanted; empty when there is none.
func first[T Object](kinds *KindTable, objects []T, unwanted func(T) bool) string {
	for _, object := range objects {
		if !unwanted(object) {
			continue
		}
		if key, err := kinds.KeyOf(object); err == nil {
			return key.String()
		}
		return object.GetName()
	}
	return ""
}

// waitForChange returns when an object of type T was written after version, or the watch has ended and all is to be read again.
func waitForChange[T Object](ctx context.Context, s Store, version string) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	var zero T
	kind, err := KindsOf(s).KindOf(zero)
	if err != nil {
		return err
	}
	changes, err := s.Watch(watching, kind, metav1.NamespaceAll, version)
	if err != nil {
		return err
	}
	<-changes // It is closed when ctx ends.
	return ctx.Err()
}
