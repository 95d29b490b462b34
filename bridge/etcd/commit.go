package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// Commit implements [store.Transactor]. It reads what the transaction depends on, decides, and writes if none of that has changed
// since. Where it can tell without reading what a transaction that succeeds finds, it tries that first.
func (s *Store) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A write that waits for its turn has no more than what it was given: thousands may wait.
	release, err := s.slots.take(ctx)
	if err != nil {
		return nil, classify(ctx, "write", err)
	}
	defer release()
	leases := t.Leases
	t.Leases = nil // They are etcd's own.
	plan, err := s.kinds.NewTransactionPlan(t)
	if err != nil {
		return nil, err
	}
	if guess, ok := s.expect(t, plan.Keys(), leases); ok {
		objects, done, err := s.commitOn(ctx, plan, leases, guess)
		if done || err != nil && !errors.Is(err, store.ErrFull) { // A full etcd refuses before it compares.
			return objects, err
		}
	}
	for {
		seen, err := s.read(ctx, plan.Keys(), leases)
		if err != nil {
			return nil, err
		}
		objects, done, err := s.commitOn(ctx, plan, leases, seen)
		if err != nil || done {
			return objects, err
		}
	}
}

// commitOn decides by what was seen, and reports false when that is so no more. Its caller has a slot.
func (s *Store) commitOn(ctx context.Context, plan *store.TransactionPlan, leases []store.Lease, seen seen) ([]runtime.Object, bool, error) {
	for i, lease := range leases {
		if seen.leases[i] != int64(lease.Token) { //nolint:gosec // A token is a revision.
			return nil, false, lost(lease)
		}
	}
	changes, err := plan.Changes(seen.objects)
	if err != nil {
		return nil, false, err
	}
	writes, err := s.writes(changes)
	if err != nil {
		return nil, false, err
	}
	if len(writes.operations) == 0 {
		return objectsOf(changes), true, nil // What was asked for was true at one revision.
	}
	response, err := s.commitNow(ctx, func(txn clientv3.Txn) clientv3.Txn { return txn.If(seen.unchanged...).Then(writes.operations...) })
	if errors.Is(err, rpctypes.ErrNoSpace) {
		revision, readErr := s.doneAt(ctx, writes)
		if readErr == nil && revision > 0 {
			return s.written(changes, writes, revision), true, nil
		}
		if readErr == nil && len(writes.deletions) > 0 {
			response, err = s.commitNow(ctx, func(txn clientv3.Txn) clientv3.Txn { return txn.If(seen.unchanged...).Then(writes.deletions...) })
		}
	}
	if err != nil {
		return nil, false, classify(ctx, "write", err)
	}
	if !response.Succeeded {
		return nil, false, nil
	}
	return s.written(changes, writes, response.Header.Revision), true, nil
}

// doneAt returns the revision at which writes were done that etcd refused because it is full, and zero when they were not: etcd carries
// out the one that exceeds its quota, and says that it has no room.
func (s *Store) doneAt(ctx context.Context, w writes) (int64, error) {
	reads := make([]clientv3.Op, 0, len(w.operations))
	for _, op := range w.operations {
		reads = append(reads, clientv3.OpGet(string(op.KeyBytes())))
	}
	response, err := ask(ctx, attemptTime, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).Then(reads...).Commit()
	})
	if err != nil {
		return 0, err
	}
	var revision int64
	for i, r := range response.Responses {
		kvs := r.GetResponseRange().Kvs
		if w.operations[i].IsDelete() != (len(kvs) == 0) {
			return 0, nil
		}
		if len(kvs) == 0 {
			continue
		}
		if string(kvs[0].Value) != string(w.operations[i].ValueBytes()) || revision != 0 && revision != kvs[0].ModRevision {
			return 0, nil
		}
		revision = kvs[0].ModRevision
	}
	return revision, nil
}

// written returns the objects of changes as they are stored: their plan has made them such as they are read.
func (s *Store) written(changes []store.PlannedWrite, w writes, revision int64) []runtime.Object {
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		at := version{revision, w.places[i]}
		c.Object.SetResourceVersion(at.String())
		if c.Event != store.Deleted {
			s.identities.note(c.Key, at, c.Object)
		}
	}
	return objectsOf(changes)
}

// seen is what a transaction depends on, as it was at one revision.
type seen struct {
	objects   []store.Object
	leases    []int64 // the revisions of their keys
	unchanged []clientv3.Cmp
}

func (s *Store) read(ctx context.Context, wanted []store.Key, leases []store.Lease) (seen, error) {
	var found seen
	var reads []clientv3.Op
	for _, key := range wanted {
		reads = append(reads, clientv3.OpGet(s.keys.ofObject(key)))
	}
	for _, lease := range leases {
		reads = append(reads, clientv3.OpGet(s.keys.ofLease(lease.Name), clientv3.WithKeysOnly()))
	}
	if len(reads) == 0 {
		return found, nil
	}
	response, err := ask(ctx, attemptTime, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).Then(reads...).Commit()
	})
	if err != nil {
		return found, classify(ctx, "read", err)
	}
	for i, r := range response.Responses {
		var revision int64 // zero is how etcd compares a key that is not there
		var obj store.Object
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			revision = kvs[0].ModRevision
			if i < len(wanted) {
				if obj, _, err = s.codec.decode(wanted[i].Kind, kvs[0].Value, revision); err != nil {
					return found, err
				}
			}
		}
		found.unchanged = append(found.unchanged, clientv3.Compare(clientv3.ModRevision(string(reads[i].KeyBytes())), "=", revision))
		if i < len(wanted) {
			found.objects = append(found.objects, obj)
		} else {
			found.leases = append(found.leases, revision)
		}
	}
	return found, nil
}

// writes are the operations of changes, and the place of each change.
type writes struct {
	operations []clientv3.Op
	places     []int64
	// deletions are the operations for an etcd that is full, which does nothing but delete. A watch reads then what was there before.
	// Empty when there is anything to put, or objects of several kinds: no watch could tell the place of each.
	deletions []clientv3.Op
}

func (s *Store) writes(changes []store.PlannedWrite) (writes, error) {
	places, err := placesOf(changes)
	w := writes{places: places}
	if err != nil {
		return w, err
	}
	deleted := map[schema.GroupVersionKind]int{}
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		value, err := s.codec.encode(places[i], c.Object)
		if err != nil {
			return w, fmt.Errorf("%s: %w", c.Key, err)
		}
		if c.Event != store.Deleted {
			w.operations = append(w.operations, clientv3.OpPut(s.keys.ofObject(c.Key), value))
			continue
		}
		w.operations = append(w.operations,
			clientv3.OpDelete(s.keys.ofObject(c.Key)),
			clientv3.OpPut(s.keys.ofDeleted(c.Key.Kind, deleted[c.Key.Kind]), value))
		w.deletions = append(w.deletions, clientv3.OpDelete(s.keys.ofObject(c.Key)))
		deleted[c.Key.Kind]++
	}
	if len(deleted) > 1 || 2*len(w.deletions) != len(w.operations) {
		w.deletions = nil
	}
	return w, nil
}

// placesOf returns the place of each change that is written: its number among them, and that of the last one is lastPlace.
func placesOf(changes []store.PlannedWrite) ([]int64, error) {
	if len(changes) > lastPlace {
		return nil, fmt.Errorf("%d writes at once: make several transactions: %w", len(changes), store.ErrInvalid)
	}
	places := make([]int64, len(changes))
	last, written := -1, int64(0)
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		places[i] = written
		last = i
		written++
	}
	if last >= 0 {
		places[last] = lastPlace
	}
	return places, nil
}

func objectsOf(changes []store.PlannedWrite) []runtime.Object {
	objects := make([]runtime.Object, 0, len(changes))
	for _, c := range changes {
		objects = append(objects, c.Object)
	}
	return objects
}
