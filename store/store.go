package store

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/outcome"
)

// Store keeps the objects that volumes need: claims, volumes, classes, attachments, nodes, pods. Its rules are those
// of a Kubernetes API server, of which it needs only these few.
//
// Objects are copied on their way in and out, so that a caller may change what it was given. Times have seconds, or
// microseconds (metav1.MicroTime), as JSON has them; what is given more exactly is cut. Every write gives the object a
// new resource version, and a watch sees every write once and in order. All methods may be called from several
// goroutines at once and return soon after ctx has ended.
type Store interface {
	// Get returns the object of key. A missing one is an error that matches [ErrNotFound].
	Get(ctx context.Context, key Key) (runtime.Object, error)
	// Create stores a new object and returns it as stored: with a UID if it had none, a creation time and a resource
	// version. One that exists already is an error that matches [ErrAlreadyExists] and leaves the old one. A store that
	// cannot keep a UID that is given refuses it, with an error that matches [ErrInvalid].
	Create(ctx context.Context, obj runtime.Object) (runtime.Object, error)
	// Update replaces an object whose resource version is still that of obj, and returns it as stored. Otherwise the
	// error matches [ErrConflict], or [ErrNotFound] when the object is gone or has another UID. An obj without a resource
	// version is an error that matches [ErrInvalid]: there is no unconditional update. One that changes nothing may be no
	// write: the object keeps its version, and no watch is told.
	Update(ctx context.Context, obj runtime.Object) (runtime.Object, error)
	// Delete removes the object of key if it meets the preconditions; otherwise the error matches [ErrConflict]. While
	// the object has finalizers it stays, with its deletion time set, and goes with the update that takes the last one
	// off.
	Delete(ctx context.Context, key Key, preconditions Preconditions) error
	// List returns all objects of a kind in a namespace ("" means all) in the order of their keys, and the version of
	// the store at which the list is true.
	List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (List, error)
	// Watch sends every write to objects of a kind in a namespace ("" means all) after version, in order. It ends, with
	// the channel closed, when ctx ends or when the receiver fell too far behind. A version that the store no longer
	// remembers is an error that matches [ErrCompacted]: list again.
	Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan Event, error)
}

// Key names one object.
type Key struct {
	// Kind is the object's group, version and kind.
	Kind schema.GroupVersionKind
	// Namespace is empty for an object of the whole cluster.
	Namespace string
	// Name is the object's name.
	Name string
}

// String returns the key as it stands in errors: kind "namespace/name".
func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %q", k.Kind.Kind, k.Name)
	}
	return fmt.Sprintf("%s %q", k.Kind.Kind, k.Namespace+"/"+k.Name)
}

// Preconditions are what an object must be for it to be deleted. Empty ones hold always.
type Preconditions struct {
	// UID is the UID that the object must have.
	UID types.UID
	// ResourceVersion is the version that the object must have.
	ResourceVersion string
}

// List is what was true at one version of the store.
type List struct {
	// Items are the objects.
	Items []runtime.Object
	// ResourceVersion is where a watch goes on.
	ResourceVersion string
}

// EventType is what happened to an object.
type EventType string

// The types of event.
const (
	Added    EventType = "Added"    // the object is new
	Modified EventType = "Modified" // the object was replaced
	Deleted  EventType = "Deleted"  // the object is gone
)

// Event is one write.
type Event struct {
	// Type is what happened.
	Type EventType
	// Object is the object as written; of a deletion, as it was last, with the resource version of the deletion.
	Object runtime.Object
}

// The sentinels of this package. Match them with errors.Is.
var (
	// ErrNotFound says that there is no such object. It is volume.ErrNotFound, too.
	ErrNotFound = outcome.ErrNotFound
	// ErrAlreadyExists says that there is such an object already.
	ErrAlreadyExists = errors.New("already exists")
	// ErrConflict says that the object is not what the caller thinks: read it again.
	ErrConflict = errors.New("changed in the meantime")
	// ErrCompacted says that the store no longer remembers so old a version: list again.
	ErrCompacted = errors.New("version too old")
	// ErrInvalid says that the object or the key is malformed.
	ErrInvalid = errors.New("invalid object")
)
