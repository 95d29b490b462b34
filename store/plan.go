package store

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TransactionPlan is a [Transaction] that was checked as far as that goes without a store: for those who implement one. Here stand the
// rules of Create, Update and Delete. A store reads the objects of Keys, asks Changes what is to be written, and writes that
// if the objects still are what it has read. Make one with [NewTransactionPlan].
type TransactionPlan struct {
	transaction Transaction
	drafts      []draft
}

// draft is one write that was checked.
type draft struct {
	key           Key
	kind          WriteKind
	object        Object // a copy of what was given, with its kind filled in; nil for a deletion
	preconditions Preconditions
}

// PlannedWrite is what one write comes to.
type PlannedWrite struct {
	// Key names the object.
	Key Key
	// Event is what a watch is told; empty when nothing is to be written, because the deletion has begun already.
	Event EventType
	// Object is what is stored, or, of a deletion, what was there last. Its resource version is for the store to set, unless
	// nothing is to be written: then it is the store's own object.
	Object Object
}

// NewTransactionPlan checks t, whose leases are those of a [NewLeaseObjects], and copies its objects. Errors match [ErrInvalid].
func NewTransactionPlan(t Transaction) (*TransactionPlan, error) {
	return (*KindTable)(nil).NewTransactionPlan(t)
}

// NewTransactionPlan is the function [NewTransactionPlan] for the kinds of the table.
func (t *KindTable) NewTransactionPlan(transaction Transaction) (*TransactionPlan, error) {
	p := &TransactionPlan{transaction: transaction, drafts: make([]draft, 0, len(transaction.Writes))}
	for i, c := range transaction.Conditions {
		if err := c.validate(t); err != nil {
			return nil, fmt.Errorf("condition %d: %w", i+1, err)
		}
	}
	for i, w := range transaction.Writes {
		d, err := w.draft(t)
		if err != nil {
			return nil, p.inWrite(i, err)
		}
		if slices.ContainsFunc(p.drafts, func(other draft) bool { return other.key == d.key }) {
			return nil, fmt.Errorf("write %d: %s is written twice: make one write of both: %w", i+1, d.key, ErrInvalid)
		}
		p.drafts = append(p.drafts, d)
	}
	return p, nil
}

// Keys returns the keys of all objects that the plan depends on.
func (p *TransactionPlan) Keys() []Key {
	keys := make([]Key, 0, len(p.drafts)+len(p.transaction.Conditions)+len(p.transaction.Leases))
	for _, d := range p.drafts {
		keys = append(keys, d.key)
	}
	for _, c := range p.transaction.Conditions {
		keys = append(keys, c.Key)
	}
	for _, lease := range p.transaction.Leases {
		keys = append(keys, leaseKey(lease.Name))
	}
	return keys
}

// Changes returns what is to be written, one change for each write, where found are the objects of Keys in their order, nil
// for one that is not there. The objects found are not changed, and not to be changed later. When what was read turns out to
// be old, it may be called again.
func (p *TransactionPlan) Changes(found []Object) ([]PlannedWrite, error) {
	writes, rest := found[:len(p.drafts)], found[len(p.drafts):]
	for i, c := range p.transaction.Conditions {
		if err := c.check(rest[i]); err != nil {
			return nil, fmt.Errorf("condition %d: %w", i+1, err)
		}
	}
	rest = rest[len(p.transaction.Conditions):]
	for i, lease := range p.transaction.Leases {
		if err := lease.check(rest[i]); err != nil {
			return nil, err
		}
	}
	changes := make([]PlannedWrite, 0, len(writes))
	for i, d := range p.drafts {
		change, err := d.change(writes[i])
		if err != nil {
			return nil, p.inWrite(i, err)
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// inWrite says which of several writes err is about.
func (p *TransactionPlan) inWrite(i int, err error) error {
	if len(p.transaction.Writes) < 2 {
		return err
	}
	return fmt.Errorf("write %d of %d: %w", i+1, len(p.transaction.Writes), err)
}

func (w Write) draft(kinds *KindTable) (draft, error) {
	switch w.Kind {
	case WriteDelete:
		return draft{key: w.Key, kind: w.Kind, preconditions: w.Preconditions}, kinds.ValidateKey(w.Key)
	case WriteCreate, WriteUpdate:
		key, copied, err := accept(kinds, w.Object)
		if err != nil {
			return draft{}, err
		}
		return draft{key: key, kind: w.Kind, object: copied}, checkVersion(key, w.Kind, copied)
	default:
		return draft{}, fmt.Errorf("a write of kind %d: make it with ToCreate, ToUpdate or ToDelete: %w", w.Kind, ErrInvalid)
	}
}

// accept checks what a writer gave and returns the store's own copy of it.
func accept(kinds *KindTable, obj runtime.Object) (Key, Object, error) {
	key, _, err := kinds.Validate(obj)
	if err != nil {
		return Key{}, nil, err
	}
	copied, ok := obj.DeepCopyObject().(Object)
	if !ok {
		return Key{}, nil, fmt.Errorf("%T has no metadata: %w", obj, ErrInvalid)
	}
	copied.GetObjectKind().SetGroupVersionKind(key.Kind)
	trimTimes(copied)
	return key, copied, nil
}

func checkVersion(key Key, kind WriteKind, obj Object) error {
	switch given := obj.GetResourceVersion(); {
	case kind == WriteCreate && given != "":
		return fmt.Errorf("%s has a resource version already: take it away, or update: %w", key, ErrInvalid)
	case kind == WriteUpdate && given == "":
		return fmt.Errorf("%s has no resource version: read it before you update it: %w", key, ErrInvalid)
	}
	return nil
}

// change says what a draft comes to where old is what the store has, nil if nothing.
func (d draft) change(old Object) (PlannedWrite, error) {
	if d.kind == WriteCreate {
		return planCreate(d, old)
	}
	if old == nil {
		return PlannedWrite{}, fmt.Errorf("%s: %w", d.key, ErrNotFound)
	}
	if d.kind == WriteUpdate {
		return planUpdate(d, old)
	}
	if err := d.preconditions.check(d.key, old); err != nil {
		return PlannedWrite{}, err
	}
	last, event := dying(old)
	return PlannedWrite{Key: d.key, Event: event, Object: last}, nil
}

func planCreate(d draft, old Object) (PlannedWrite, error) {
	if old != nil {
		return PlannedWrite{}, fmt.Errorf("%s: %w", d.key, ErrAlreadyExists)
	}
	prepareNew(d.object)
	return PlannedWrite{Key: d.key, Event: Added, Object: d.object}, nil
}

func planUpdate(d draft, old Object) (PlannedWrite, error) {
	obj := d.object
	switch {
	case obj.GetUID() != "" && obj.GetUID() != old.GetUID():
		return PlannedWrite{}, fmt.Errorf("%s with UID %q: %w", d.key, obj.GetUID(), ErrNotFound)
	case obj.GetResourceVersion() != old.GetResourceVersion():
		return PlannedWrite{}, fmt.Errorf("%s at version %q is at %q now: %w", d.key, obj.GetResourceVersion(), old.GetResourceVersion(), ErrConflict)
	}
	if err := checkFinalizers(d.key, old, obj); err != nil {
		return PlannedWrite{}, err
	}
	keepIdentity(old, obj)
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		return PlannedWrite{Key: d.key, Event: Deleted, Object: obj}, nil
	}
	return PlannedWrite{Key: d.key, Event: Modified, Object: obj}, nil
}

// prepareNew fills in what a new object gets from the store.
func prepareNew(obj metav1.Object) {
	if obj.GetUID() == "" {
		obj.SetUID(newUID())
	}
	if created := obj.GetCreationTimestamp(); created.IsZero() {
		obj.SetCreationTimestamp(now())
	}
	obj.SetDeletionTimestamp(nil)
}

// keepIdentity carries over what an update cannot change.
func keepIdentity(old, updated metav1.Object) {
	updated.SetUID(old.GetUID())
	updated.SetCreationTimestamp(old.GetCreationTimestamp())
	updated.SetDeletionTimestamp(old.GetDeletionTimestamp())
}

// dying returns the object that the deletion of old leaves or ends with, and the event that says so: none when the
// deletion has begun already.
func dying(old Object) (Object, EventType) {
	last, ok := old.DeepCopyObject().(Object)
	if !ok || len(old.GetFinalizers()) > 0 && old.GetDeletionTimestamp() != nil {
		return old, ""
	}
	if len(old.GetFinalizers()) == 0 {
		return last, Deleted
	}
	at := now()
	last.SetDeletionTimestamp(&at)
	return last, Modified
}

func (p Preconditions) check(key Key, obj metav1.Object) error {
	if p.UID != "" && p.UID != obj.GetUID() {
		return fmt.Errorf("%s has UID %q, not %q: %w", key, obj.GetUID(), p.UID, ErrConflict)
	}
	if p.ResourceVersion != "" && p.ResourceVersion != obj.GetResourceVersion() {
		return fmt.Errorf("%s at version %q is at %q now: %w", key, p.ResourceVersion, obj.GetResourceVersion(), ErrConflict)
	}
	return nil
}
