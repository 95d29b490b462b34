package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

// A lease is a key whose value is its holder, bound to a lease of etcd. It is written when the lease is taken, and never again:
// its revision is the token.

// AcquireLease implements [store.Lessor].
func (s *Store) AcquireLease(ctx context.Context, request store.LeaseRequest) (store.Lease, error) {
	request, err := request.Validate()
	if err != nil {
		return store.Lease{}, err
	}
	wait := leaseWait{store: s, request: request}
	for failures := 0; ; {
		lease, taken, err := wait.try(ctx)
		switch {
		case taken:
			return lease, nil
		case ctx.Err() != nil:
			return store.Lease{}, wait.ended(ctx)
		case err == nil:
			failures, wait.failure = 0, nil
			continue
		}
		failures++
		wait.failure = classify(ctx, "take lease", err)
		s.logger.WarnContext(ctx, "taking a lease will be tried again", "lease", request.Name.String(), "error", wait.failure)
		pause(ctx, min(time.Duration(failures)*50*time.Millisecond, request.TTL))
	}
}

// leaseWait is one wait for a lease. It belongs to one goroutine.
type leaseWait struct {
	store   *Store
	request store.LeaseRequest
	holder  string // the last known holder; empty for none
	failure error  // of the last try; nil if it did not fail
}

// try takes the lease if it is free, and otherwise waits until its key changes.
func (w *leaseWait) try(ctx context.Context) (store.Lease, bool, error) {
	key := w.store.keys.ofLease(w.request.Name)
	found, err := w.store.getNow(ctx, key)
	if err != nil {
		return store.Lease{}, false, err
	}
	w.holder = ""
	var revision int64
	var earlier clientv3.LeaseID
	if len(found.Kvs) > 0 {
		w.holder, revision, earlier = string(found.Kvs[0].Value), found.Kvs[0].ModRevision, clientv3.LeaseID(found.Kvs[0].Lease)
	}
	if w.holder != "" && w.holder != w.request.Holder {
		return store.Lease{}, false, w.store.awaitChange(ctx, key, found.Header.Revision+1)
	}
	lease, taken, err := w.take(ctx, key, revision)
	if taken && earlier != 0 {
		// The key is no longer bound to the earlier lease, which would end by itself.
		_, _ = askOne(ctx, attemptTime, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
			return w.store.client.Revoke(ctx, earlier)
		})
	}
	return lease, taken, err
}

// take writes the key if its revision is unchanged.
func (w *leaseWait) take(ctx context.Context, key string, revision int64) (store.Lease, bool, error) {
	began := time.Now()
	// If it was granted and the answer was lost, it ends by itself.
	granted, err := ask(ctx, attemptTime, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return w.store.client.Grant(ctx, int64(w.request.TTL/time.Second))
	})
	if err != nil {
		return store.Lease{}, false, err
	}
	response, err := w.store.commitNow(ctx, func(txn clientv3.Txn) clientv3.Txn {
		return txn.If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, w.request.Holder, clientv3.WithLease(granted.ID)))
	})
	if err != nil || !response.Succeeded {
		// If the answer was lost, the key may exist: the revocation removes it.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = w.store.client.Revoke(ending, granted.ID)
		return store.Lease{}, false, err
	}
	return store.Lease{
		Name: w.request.Name, Holder: w.request.Holder, TTL: w.request.TTL,
		Token: uint64(response.Header.Revision), Expires: began.Add(w.request.TTL), //nolint:gosec // Revisions count from one.
		ID: strconv.FormatInt(int64(granted.ID), 16),
	}, true, nil
}

// ended returns the error of a wait whose context has ended. It contains the failure that prevented a free lease from being taken.
func (w *leaseWait) ended(ctx context.Context) error {
	if w.failure != nil {
		return fmt.Errorf("lease %q: %w: %w", w.request.Name, context.Cause(ctx), w.failure)
	}
	if w.holder == "" || w.holder == w.request.Holder {
		return fmt.Errorf("lease %q: %w", w.request.Name, context.Cause(ctx))
	}
	return fmt.Errorf("lease %q is held by %q: %w: %w", w.request.Name, w.holder, store.ErrLeaseHeld, context.Cause(ctx))
}

// awaitChange returns when a key has changed at the revision or later, or when the watch has ended.
func (s *Store) awaitChange(ctx context.Context, key string, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for response := range s.client.Watch(ctx, key, clientv3.WithRev(revision)) {
		if err := response.Err(); err != nil {
			return err
		}
		if len(response.Events) > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// RenewLease implements [store.Lessor].
func (s *Store) RenewLease(ctx context.Context, lease store.Lease) (store.Lease, error) {
	id, err := idOf(lease)
	if err != nil {
		return lease, err
	}
	// A member that does not answer must not cost the lease.
	within := min(attemptTime, lease.TTL/6)
	var began time.Time
	_, err = ask(ctx, within, func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		began = time.Now()
		return s.client.KeepAliveOnce(ctx, id)
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return lease, lost(lease)
	}
	if err != nil {
		return lease, classify(ctx, fmt.Sprintf("renew lease %q", lease.Name), err)
	}
	// The key may have another holder, or another lease of the same holder.
	found, err := ask(ctx, within, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.keys.ofLease(lease.Name))
	})
	if err != nil {
		return lease, classify(ctx, fmt.Sprintf("renew lease %q", lease.Name), err)
	}
	if len(found.Kvs) == 0 || uint64(found.Kvs[0].ModRevision) != lease.Token { //nolint:gosec // Revisions count from one.
		return lease, lost(lease)
	}
	lease.Expires = began.Add(lease.TTL)
	return lease, nil
}

// ReleaseLease implements [store.Lessor].
func (s *Store) ReleaseLease(ctx context.Context, lease store.Lease) error {
	id, err := idOf(lease)
	if err != nil {
		return err
	}
	// That removes the key too, if it is still bound to this lease.
	_, err = ask(ctx, attemptTime, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) { return s.client.Revoke(ctx, id) })
	if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return classify(ctx, fmt.Sprintf("release lease %q", lease.Name), err)
}

// Leases returns the held leases, sorted by namespace and name, as objects for people to read, for example on a page. They have the
// holder, but not the time of the last renewal, which etcd does not report.
func (s *Store) Leases(ctx context.Context) ([]*coordinationv1.Lease, error) {
	prefix := s.keys.ofLeases()
	response, err := s.get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, classify(ctx, "list leases", err)
	}
	leases := make([]*coordinationv1.Lease, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		namespace, name, found := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
		if !found {
			namespace, name = "", namespace
		}
		leases = append(leases, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(string(kv.Value))},
		})
	}
	slices.SortFunc(leases, func(a, b *coordinationv1.Lease) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return leases, nil
}

func idOf(lease store.Lease) (clientv3.LeaseID, error) {
	id, err := strconv.ParseInt(lease.ID, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("lease %q has the ID %q, which is none of etcd's: %w", lease.Name, lease.ID, store.ErrInvalid)
	}
	return clientv3.LeaseID(id), nil
}

func lost(lease store.Lease) error {
	return fmt.Errorf("lease %q of %q with token %d: %w", lease.Name, lease.Holder, lease.Token, store.ErrLeaseLost)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
