package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ApplyAction is what [Apply] did with one object.
type ApplyAction string

// What Apply did.
const (
	ApplyCreated   ApplyAction = "created"
	ApplyUpdated   ApplyAction = "updated"
	ApplyUnchanged ApplyAction = "unchanged"
)

// Applied is one object of a manifest after [Apply].
type Applied struct {
	// Object is the object as the store has it.
	Object Object
	// Action is what was done with it.
	Action ApplyAction
}

// Apply makes the store hold what manifests say: it creates an object that is missing and updates one that is there. It returns
// what it did, classes and volumes first, then claims, then pods, so that a claim is not seen before what it names.
//
// Of an object that is there, Apply sets the fields that the manifest sets. A field that the manifest leaves out stays as it is:
// a controller may have written it (spec.volumeName of a claim). A list is replaced as a whole, and so are data, binaryData and
// stringData of a config map or secret. Of the metadata, Apply sets labels and annotations; it never writes the status.
//
// Apply refuses a change that would make the object another one, as a Kubernetes API server does: the spec of a claim but for
// resources and volumeAttributesClassName, the source of a PersistentVolume, the provisioner and parameters of a class, the spec of
// a pod, an object that is immutable. The error matches [ErrInvalid] and names the fields; the object stays as it was. An object
// that is being deleted, or that has another UID than the manifest says, is an error that matches [ErrConflict].
//
// Nothing is written when an object is malformed, or two have one name, as in [Load], which says how namespaces are filled in.
// Otherwise an error of one object does not keep the others from being applied; what was applied is returned with the error. On a
// store that fills in defaults, such as a Kubernetes API server, use its own tool.
func Apply(ctx context.Context, s Store, objects []runtime.Object) ([]Applied, error) {
	prepared, err := prepareAll(objects)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(prepared, func(a, b Object) int { return applyRank(a) - applyRank(b) })
	var applied []Applied
	var errs []error
	for _, object := range prepared {
		one, err := applyOne(ctx, s, object)
		if err != nil {
			errs = append(errs, fmt.Errorf("apply: %w", err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		applied = append(applied, one)
	}
	return applied, errors.Join(errs...)
}

// applyRank orders objects after those that they name.
func applyRank(object Object) int {
	switch object.(type) {
	case *v1.Pod:
		return 2
	case *v1.PersistentVolumeClaim:
		return 1
	}
	return 0
}

// applyTries is how often an object that others change at the same time is read again.
const applyTries = 10

func applyOne(ctx context.Context, s Store, wanted Object) (Applied, error) {
	key, err := KeyOf(wanted)
	if err != nil {
		return Applied{}, err
	}
	for try := 1; ; try++ {
		applied, err := createOrUpdate(ctx, s, key, wanted)
		lost := errors.Is(err, ErrConflict) || errors.Is(err, ErrAlreadyExists) || errors.Is(err, ErrNotFound)
		var refused *refusedError
		if !lost || errors.As(err, &refused) || try == applyTries {
			return applied, err
		}
	}
}

// refusedError is an error that another try does not mend.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func createOrUpdate(ctx context.Context, s Store, key Key, wanted Object) (Applied, error) {
	found, err := s.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return create(ctx, s, wanted)
	}
	there, err := as[Object](found, err)
	if err != nil {
		return Applied{}, err
	}
	switch {
	case there.GetDeletionTimestamp() != nil:
		return Applied{}, &refusedError{fmt.Errorf("%s is being deleted: apply it again when it is gone: %w", key, ErrConflict)}
	case wanted.GetUID() != "" && wanted.GetUID() != there.GetUID():
		return Applied{}, &refusedError{fmt.Errorf("%s has UID %q and the manifest says %q: leave the UID out, or delete the object: %w",
			key, there.GetUID(), wanted.GetUID(), ErrConflict)}
	}
	merged, err := merge(key, there, wanted)
	if err != nil {
		return Applied{}, err
	}
	if merged == nil {
		return Applied{Object: there, Action: ApplyUnchanged}, nil
	}
	updated, err := Update(ctx, s, merged)
	return Applied{Object: updated, Action: ApplyUpdated}, err
}

func create(ctx context.Context, s Store, wanted Object) (Applied, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return Applied{}, err
	}
	delete(fields, "status")
	object, err := objectOf(wanted, fields)
	if err != nil {
		return Applied{}, err
	}
	created, err := Create(ctx, s, object)
	return Applied{Object: created, Action: ApplyCreated}, err
}

// objectOf returns an object of the type of like with these fields.
func objectOf(like Object, fields map[string]any) (Object, error) {
	object, err := as[Object](reflect.New(reflect.TypeOf(like).Elem()).Interface().(runtime.Object), nil) //nolint:forcetypeassert // As like is one.
	if err != nil {
		return nil, err
	}
	return object, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, object)
}

// merge returns what is there with the fields that are wanted, and nil when that is no change.
func merge(key Key, there, wanted Object) (Object, error) {
	old, err := runtime.DefaultUnstructuredConverter.ToUnstructured(there)
	if err != nil {
		return nil, err
	}
	set, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return nil, err
	}
	keepChangeable(set)
	merged := mergeFields(old, set)
	if key.Kind == ConfigMaps || key.Kind == Secrets {
		replaceData(merged, set)
	}
	changed := changedFields(old, merged)
	if len(changed) == 0 {
		return nil, nil
	}
	if fixed := fixedFields(key.Kind, old, changed); len(fixed) > 0 {
		return nil, fmt.Errorf("%s: %s cannot change: apply it without, or delete the object and make another one: %w",
			key, strings.Join(fixed, ", "), ErrInvalid)
	}
	return objectOf(there, merged)
}

// keepChangeable leaves only what a manifest may change of an object that is there.
func keepChangeable(set map[string]any) {
	metadata, _ := set["metadata"].(map[string]any)
	maps.DeleteFunc(metadata, func(field string, _ any) bool { return field != "labels" && field != "annotations" })
	for _, field := range []string{"status", "kind", "apiVersion"} {
		delete(set, field)
	}
}

// mergeFields returns old with the fields of set. A field that is nil in set was not set.
func mergeFields(old, set map[string]any) map[string]any {
	merged := maps.Clone(old)
	for field, value := range set {
		deeper, isMap := value.(map[string]any)
		before, wasMap := old[field].(map[string]any)
		switch {
		case value == nil, isMap && len(deeper) == 0 && !wasMap:
		case isMap && wasMap:
			merged[field] = mergeFields(before, deeper)
		default:
			merged[field] = value
		}
	}
	return merged
}

// replaceData gives a config map or secret the data of the manifest, so that a key that it has no more goes.
func replaceData(merged, set map[string]any) {
	for _, field := range []string{"data", "binaryData", "stringData"} {
		delete(merged, field)
		if data, ok := set[field]; ok {
			merged[field] = data
		}
	}
}

// changedFields names the fields that differ, those of the spec each by itself.
func changedFields(old, merged map[string]any) []string {
	var changed []string
	for field, value := range merged {
		if field == "spec" {
			continue
		}
		if !reflect.DeepEqual(old[field], value) {
			changed = append(changed, field)
		}
	}
	for field := range old {
		if _, kept := merged[field]; !kept {
			changed = append(changed, field)
		}
	}
	before, _ := old["spec"].(map[string]any)
	after, _ := merged["spec"].(map[string]any)
	for field, value := range after {
		if !reflect.DeepEqual(before[field], value) {
			changed = append(changed, "spec."+field)
		}
	}
	slices.Sort(changed)
	return changed
}

// changeable are the fields that a manifest can change of objects of a kind, beside metadata. A kind that is not here can change
// in all.
var changeable = map[schema.GroupVersionKind][]string{
	Pods:                   {},
	Leases:                 {},
	VolumeAttachments:      {},
	PersistentVolumeClaims: {"spec.resources", "spec.volumeAttributesClassName"},
	PersistentVolumes: {
		"spec.accessModes", "spec.capacity", "spec.mountOptions", "spec.persistentVolumeReclaimPolicy", "spec.storageClassName",
		"spec.volumeAttributesClassName",
	},
	StorageClasses: {"allowVolumeExpansion", "allowedTopologies", "mountOptions"},
}

// fixedFields returns those of the changed fields that cannot change.
func fixedFields(kind schema.GroupVersionKind, old map[string]any, changed []string) []string {
	allowed, limited := changeable[kind]
	if old["immutable"] == true {
		allowed, limited = nil, true
	}
	if !limited {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(changed), func(field string) bool {
		return field == "metadata" || slices.Contains(allowed, field)
	})
}
