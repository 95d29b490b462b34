package store

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// Transactor is a [Store] that writes several objects at once. It is optional: ask for it by a type assertion.
//
// [Memory] is one, and so are the store on disk and that on etcd. A Kubernetes API server has no transactions. A store that is
// built around another passes on only what it knows of when it embeds the interface Store, not the struct: otherwise its Commit is
// that of the struct, and goes past it.
type Transactor interface {
	Store
	// Commit does all writes of t if all conditions of t hold, and none otherwise. No reader ever sees only some of them.
	// It returns the objects in the order of the writes, as stored. For a deletion it returns the object of the event, or
	// the object as it stays because of its finalizers. The error names the part that did not hold. It matches what the
	// method of [Store] for that write returns, [ErrConflict] for a condition, and [ErrLeaseLost] for a lease.
	//
	// Every write has a version of its own, in their order, and a watch that ends between two of them is resumed there.
	Commit(ctx context.Context, t Transaction) ([]runtime.Object, error)
}

// Transaction is what a [Transactor] does at once.
type Transaction struct {
	// Conditions must hold of objects, most of all of such as are not written.
	Conditions []ObjectCondition
	// Leases must be held still, as they were acquired from the [Lessor] of the same store. This is what a fencing token is
	// for: a holder that was paused for longer than its lease writes nothing, whatever its clock says.
	Leases []Lease
	// Writes are the writes, each to another object.
	Writes []Write
}

// ObjectCondition is what must be true of one object.
type ObjectCondition struct {
	// Key names the object.
	Key Key
	// Preconditions are what the object must be. Empty ones ask for no more than that it exists.
	Preconditions Preconditions
	// Absent says that there must be no such object; Preconditions are to be empty then.
	Absent bool
}

// WriteKind is which method of [Store] a [Write] is like.
type WriteKind uint8

// The kinds of write. Zero is none of them.
const (
	WriteCreate WriteKind = iota + 1 // like Create
	WriteUpdate                      // like Update
	WriteDelete                      // like Delete
)

// Write is one write of a [Transaction]. Make it with [ToCreate], [ToUpdate] or [ToDelete].
type Write struct {
	// Kind says which of the other fields count.
	Kind WriteKind
	// Object is what is to be created, or to be put in the place of the version that it names.
	Object runtime.Object
	// Key and Preconditions say what is to be deleted.
	Key           Key
	Preconditions Preconditions
}

// ToCreate returns the write that creates obj, as the method Create does.
func ToCreate(obj runtime.Object) Write { return Write{Kind: WriteCreate, Object: obj} }

// ToUpdate returns the write that updates obj, as the method Update does.
func ToUpdate(obj runtime.Object) Write { return Write{Kind: WriteUpdate, Object: obj} }

// ToDelete returns the write that deletes the object of key, as the method Delete does.
func ToDelete(key Key, preconditions Preconditions) Write {
	return Write{Kind: WriteDelete, Key: key, Preconditions: preconditions}
}

func (c ObjectCondition) validate(kinds *KindTable) error {
	if c.Absent && c.Preconditions != (Preconditions{}) {
		return fmt.Errorf("%s cannot be absent and have a UID or a version: %w", c.Key, ErrInvalid)
	}
	return kinds.ValidateKey(c.Key)
}

// check reports whether the condition holds of obj, which is nil when there is no object of that key. The error matches
// [ErrConflict].
func (c ObjectCondition) check(obj Object) error {
	switch {
	case obj == nil && c.Absent:
		return nil
	case obj == nil:
		return fmt.Errorf("%s must be there and is not: %w", c.Key, ErrConflict)
	case c.Absent:
		return fmt.Errorf("%s must not be there and is: %w", c.Key, ErrConflict)
	}
	return c.Preconditions.check(c.Key, obj)
}
