package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// objects are what the database holds of the manifests, old and new.
type objects struct {
	pods      []*v1.Pod // wanted
	goingPods []*v1.Pod // of an earlier manifest
	going     []store.Object
}

// annotationManifest marks the objects that come from the manifests, in contrast to those that the controller makes.
const annotationManifest = "orchestrator.volumekit.io/from-manifest"

// isFromManifest reports whether an object came from the manifests.
func isFromManifest(object metav1.Object) bool {
	return object.GetAnnotations()[annotationManifest] != ""
}

// record creates what is new in the database, which gives every object its UID, and returns all that is from manifests.
// An object that is there already stays as it was, but for a claim that asks for more.
func (a *agent) record(ctx context.Context, manifests []runtime.Object) (objects, error) {
	var o objects
	wanted := make(map[store.Key]bool)
	// A claim is not to be seen before the class and the volume that it names.
	slices.SortStableFunc(manifests, func(a, b runtime.Object) int { return rank(a) - rank(b) })
	for _, object := range manifests {
		key, err := a.create(ctx, object)
		if err != nil {
			return o, err
		}
		wanted[key] = true
	}
	for _, kind := range store.Kinds() {
		list, err := a.database.List(ctx, kind, metav1.NamespaceAll)
		if err != nil {
			return o, err
		}
		if err := o.add(list.Items, wanted); err != nil {
			return o, err
		}
	}
	return o, nil
}

// rank orders objects after those that they name.
func rank(object runtime.Object) int {
	switch object.(type) {
	case *v1.Pod:
		return 2
	case *v1.PersistentVolumeClaim:
		return 1
	}
	return 0
}

// add sorts what the database holds of one kind.
func (o *objects) add(items []runtime.Object, wanted map[store.Key]bool) error {
	for _, item := range items {
		key, err := store.KeyOf(item)
		if err != nil {
			return err
		}
		switch object := item.(type) {
		case *v1.Pod:
			if wanted[key] {
				o.pods = append(o.pods, object)
			} else {
				o.goingPods = append(o.goingPods, object)
			}
		case store.Object:
			if !wanted[key] && isFromManifest(object) {
				o.going = append(o.going, object)
			}
		}
	}
	return nil
}

// create puts an object of a manifest into the database, unless it is there, and returns its key.
func (a *agent) create(ctx context.Context, object runtime.Object) (store.Key, error) {
	typed, ok := object.(store.Object)
	if !ok {
		return store.Key{}, fmt.Errorf("a manifest holds a %T", object)
	}
	key, err := store.KeyOf(typed)
	if err != nil {
		return key, err
	}
	if namespaced, err := store.Namespaced(key.Kind); err == nil && namespaced && key.Namespace == "" {
		key.Namespace = v1.NamespaceDefault
		typed.SetNamespace(key.Namespace)
	}
	annotations := map[string]string{annotationManifest: "true"}
	maps.Copy(annotations, typed.GetAnnotations())
	typed.SetAnnotations(annotations)
	there, err := a.database.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		_, err = a.database.Create(ctx, typed)
	case err == nil && isDying(there):
		err = fmt.Errorf("%s is being deleted, and is wanted again when it is gone", key)
	case err == nil:
		err = a.requestMore(ctx, there, typed)
	}
	return key, err
}

func isDying(object runtime.Object) bool {
	typed, ok := object.(metav1.Object)
	return ok && typed.GetDeletionTimestamp() != nil
}

// deleteObjects deletes what no manifest has any more: claims, then, when the controller has taken their volumes back,
// volumes and classes.
func (a *agent) deleteObjects(ctx context.Context, objects []store.Object) error {
	var later []store.Object
	for _, object := range objects {
		if _, ok := object.(*v1.PersistentVolumeClaim); !ok {
			later = append(later, object)
			continue
		}
		if err := a.delete(ctx, object); err != nil {
			return err
		}
	}
	if err := store.WaitForNone(ctx, a.database, func(c *v1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil }); err != nil {
		return err
	}
	if err := store.WaitForNone(ctx, a.database, goesWithItsClaim(ctx, a.database)); err != nil {
		return err
	}
	for _, object := range later {
		if err := a.delete(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) delete(ctx context.Context, object store.Object) error {
	if err := store.Delete(ctx, a.database, object); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	kind, err := store.KindOf(object)
	if err == nil {
		a.out.say("%s %s is deleted", kind.Kind, nameOf(object))
	}
	return err
}

// goesWithItsClaim tells the volumes that are deleted with their claims, and whose claims are gone.
func goesWithItsClaim(ctx context.Context, s store.Store) func(*v1.PersistentVolume) bool {
	return func(pv *v1.PersistentVolume) bool {
		ref := pv.Spec.ClaimRef
		if ref == nil || ref.UID == "" || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
			return false
		}
		claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, s, ref.Namespace, ref.Name)
		return errors.Is(err, store.ErrNotFound) || err == nil && claim.UID != ref.UID
	}
}
