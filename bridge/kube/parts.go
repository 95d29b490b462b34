package kube

import (
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/store"
)

// The kinds with a field of this name are those whose status the API server writes apart.
const statusField = "Status"

// statusOf returns the status of obj; an invalid value when its kind has none.
func statusOf(obj store.Object) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(statusField)
}

// hasStatus reports whether the status of obj is written apart.
func hasStatus(obj store.Object) bool { return statusOf(obj).IsValid() }

// saysStatus reports whether obj has a status that says anything.
func saysStatus(obj store.Object) bool { return hasStatus(obj) && !statusOf(obj).IsZero() }

// sameStatus reports whether two objects of one kind have the same status.
func sameStatus(a, b store.Object) bool {
	return !hasStatus(a) || apiequality.Semantic.DeepEqual(statusOf(a).Interface(), statusOf(b).Interface())
}

// sameRest reports whether two objects of one kind are the same but for the status, and for what the API server alone writes.
func sameRest(a, b store.Object) bool {
	return apiequality.Semantic.DeepEqual(restOf(a), restOf(b))
}

func restOf(obj store.Object) store.Object {
	rest := copyOf(obj)
	if hasStatus(rest) {
		statusOf(rest).SetZero()
	}
	rest.SetResourceVersion("")
	rest.SetGeneration(0)
	rest.SetManagedFields(nil)
	return rest
}

// joined returns a copy of rest with the status of another object of its kind.
func joined(rest, status store.Object) store.Object {
	obj := copyOf(rest)
	if hasStatus(obj) {
		statusOf(obj).Set(statusOf(copyOf(status)))
	}
	return obj
}

// at returns a copy of obj that replaces a version.
func at(obj store.Object, version string) store.Object {
	copied := copyOf(obj)
	copied.SetResourceVersion(version)
	return copied
}

func copyOf(obj store.Object) store.Object {
	return obj.DeepCopyObject().(store.Object) //nolint:forcetypeassert // A copy has the type of the original.
}
