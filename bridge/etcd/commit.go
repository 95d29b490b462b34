package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// Commit implements [store.Transactor]. It reads what the transaction depends on, decides, and writes if none of that has changed
// since.
func (s *Store) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	leases := t.Leases
	t.Leases = nil // They are etcd's own.
	plan, err := store.NewPlan(t)
	if err != nil {
		return nil, err
	}
	for {
		objects, done, err := s.tryCommit(ctx, plan, leases)
		if err != nil || done {
			return objects, err
		}
	}
}

// tryCommit reports false when somebody else was faster.
func (s *Store) tryCommit(ctx context.Context, plan *store.Plan, leases []store.Lease) ([]runtime.Object, bool, error) {
	seen, err := s.read(ctx, plan.Keys(), leases)
	if err != nil {
		return nil, false, err
	}
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
	response, err := s.commit(ctx, func(txn clientv3.Txn) clientv3.Txn { return txn.If(seen.unchanged...).Then(writes.operations...) })
	if err != nil {
		return nil, false, classify(ctx, "write", err)
	}
	if !response.Succeeded {
		return nil, false, nil
	}
	objects, err := s.written(changes, writes, response.Header.Revision)
	return objects, true, err
}

// written returns the objects of changes as they are stored.
func (s *Store) written(changes []store.Change, w writes, revision int64) ([]runtime.Object, error) {
	objects := objectsOf(changes)
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		var err error
		if objects[i], _, err = s.codec.decode(c.Key.Kind, []byte(w.values[i]), revision); err != nil {
			return nil, err
		}
	}
	return objects, nil
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

// writes are the operations of changes, and the value of each change.
type writes struct {
	operations []clientv3.Op
	values     []string
}

func (s *Store) writes(changes []store.Change) (writes, error) {
	w := writes{values: make([]string, len(changes))}
	places, err := placesOf(changes)
	if err != nil {
		return w, err
	}
	deleted := map[schema.GroupVersionKind]int{}
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		if w.values[i], err = s.codec.encode(places[i], c.Object); err != nil {
			return w, fmt.Errorf("%s: %w", c.Key, err)
		}
		if c.Event != store.Deleted {
			w.operations = append(w.operations, clientv3.OpPut(s.keys.ofObject(c.Key), w.values[i]))
			continue
		}
		w.operations = append(w.operations,
			clientv3.OpDelete(s.keys.ofObject(c.Key)),
			clientv3.OpPut(s.keys.ofDeleted(c.Key.Kind, deleted[c.Key.Kind]), w.values[i]))
		deleted[c.Key.Kind]++
	}
	return w, nil
}

// placesOf returns the place of each change: its number, and that of the last one is lastPlace.
func placesOf(changes []store.Change) ([]int64, error) {
	if len(changes) > lastPlace {
		return nil, fmt.Errorf("%d writes at once: make several transactions: %w", len(changes), store.ErrInvalid)
	}
	places := make([]int64, len(changes))
	last := -1
	for i, c := range changes {
		places[i] = int64(i)
		if c.Event != "" {
			last = i
		}
	}
	if last >= 0 {
		places[last] = lastPlace
	}
	return places, nil
}

func objectsOf(changes []store.Change) []runtime.Object {
	objects := make([]runtime.Object, 0, len(changes))
	for _, c := range changes {
		objects = append(objects, c.Object)
	}
	return objects
}
