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

// Apply makes the store hold what manifests say: it creates missing objects and updates existing ones. It works on classes
// and volumes first, then claims, then pods, so a claim never appears before the objects that it names. It returns what it
// did in that order.
//
// Apply sets those fields of an existing object that the manifest sets. Other fields keep their values, because a
// controller may have written them (spec.volumeName of a claim). A list is replaced as a whole, and so are data, binaryData
// and stringData of a config map or secret. In the metadata, Apply sets only labels and annotations. It never writes the
// status.
//
// Like a Kubernetes API server, Apply refuses to change the identity of an object: the spec of a claim except for resources
// and volumeAttributesClassName, the source of a PersistentVolume, the provisioner and parameters of a class, the spec of a
// pod, a volume attributes class, an object that is immutable. The error matches [ErrInvalid] and names the fields, and the
// object keeps its state. If an object is being deleted, or has another UID than the manifest, the error matches
// [ErrConflict].
//
// If an object is malformed, or two have one name, Apply writes nothing. [Load] describes this, and how namespaces are
// filled in. Otherwise an error for one object does not stop the others, and Apply returns the applied objects with the
// error. If a store fills in defaults, as a Kubernetes API server does, use that store's own tool.
func Apply(ctx context.Context, s Store, objects []runtime.Object) ([]Applied, error) {
	prepared, err := prepareAll(KindsOf(s), objects)
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

// applyRank orders objects so that each comes after those that it names.
func applyRank(object Object) int {
	switch object.(type) {
	case *v1.Pod:
		return 2
	case *v1.PersistentVolumeClaim:
		return 1
	}
	return 0
}

// applyTries is how often Apply tries one object while others change it.
const applyTries = 10

func applyOne(ctx context.Context, s Store, wanted Object) (Applied, error) {
	key, err := KindsOf(s).KeyOf(wanted)
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

// refusedError is an error that is not retried.
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

// objectOf returns an object of like's type with these fields.
func objectOf(like Object, fields map[string]any) (Object, error) {
	object, err := as[Object](reflect.New(reflect.TypeOf(like).Elem()).Interface().(runtime.Object), nil) //nolint:forcetypeassert // The result has like's type.
	if err != nil {
		return nil, err
	}
	return object, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, object)
}

// merge returns the existing object with the wanted fields, or nil if nothing changes.
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

// keepChangeable removes from set what a manifest cannot change in an existing object.
func keepChangeable(set map[string]any) {
	metadata, _ := set["metadata"].(map[string]any)
	maps.DeleteFunc(metadata, func(field string, _ any) bool { return field != "labels" && field != "annotations" })
	for _, field := range []string{"status", "kind", "apiVersion"} {
		delete(set, field)
	}
}

// mergeFields returns old with the fields of set. A nil field in set counts as not set.
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

// replaceData gives a config map or secret exactly the data of the manifest. Keys that the manifest lacks are removed.
func replaceData(merged, set map[string]any) {
	for _, field := range []string{"data", "binaryData", "stringData"} {
		delete(merged, field)
		if data, ok := set[field]; ok {
			merged[field] = data
		}
	}
}

// changedFields names the fields that differ. It names fields of the spec one by one.
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

// changeable lists, by kind, the fields that a manifest can change, beside metadata. For a kind that is missing here, it
// can change all.
var changeable = map[schema.GroupVersionKind][]string{
	Pods:                   {},
	Leases:                 {},
	VolumeAttachments:      {},
	PersistentVolumeClaims: {"spec.resources", "spec.volumeAttributesClassName"},
	PersistentVolumes: {
		"spec.accessModes", "spec.capacity", "spec.mountOptions", "spec.persistentVolumeReclaimPolicy", "spec.storageClassName",
		"spec.volumeAttributesClassName",
	},
	StorageClasses:          {"allowVolumeExpansion", "allowedTopologies", "mountOptions"},
	VolumeAttributesClasses: {},
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
