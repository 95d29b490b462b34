package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// attemptTime is how long a call waits for one member before it tries another one. etcd's client tries members in turn, also a member
// that is cut off from the others and cannot answer.
const attemptTime = time.Second

// ask makes a call that may be repeated. It tries one member after the other until one answers or ctx ends.
func ask[T any](ctx context.Context, within time.Duration, call func(context.Context) (T, error)) (T, error) {
	for failures := 1; ; failures++ {
		answer, err := askOne(ctx, within, call)
		if err == nil || ctx.Err() != nil || !isPassing(err) {
			return answer, err
		}
		pause(ctx, min(time.Duration(failures)*20*time.Millisecond, within))
	}
}

func askOne[T any](ctx context.Context, within time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), within)
	defer cancel()
	return call(ctx)
}

// isPassing reports whether another member may answer, or the same one later.
func isPassing(err error) bool {
	var told rpctypes.EtcdError
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded ||
		status.Code(err) == codes.Unavailable || errors.As(err, &told) && told.Code() == codes.Unavailable
}

// slots bounds the number of calls at a time. Other calls wait until one was answered. So etcd sets the pace, and the time of an attempt
// does not run during the wait. Calls for leases take no slot: a lease must not end because of other calls of its holder.
type slots chan struct{}

// take waits for a slot. The caller must call release.
func (s slots) take(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// inSlot makes a call in a slot of its own.
func inSlot[T any](ctx context.Context, s slots, call func() (T, error)) (T, error) {
	release, err := s.take(ctx)
	if err != nil {
		var none T
		return none, err
	}
	defer release()
	return call()
}

// commit waits for a slot, and does a transaction that writes.
func (s *Store) commit(ctx context.Context, txn func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	return inSlot(ctx, s.slots, func() (*clientv3.TxnResponse, error) { return s.commitNow(ctx, txn) })
}

// commitNow does a transaction that writes. It repeats the call only if a member reports that it has no leader: then nothing was begun.
// After any other failure the transaction may have been done.
func (s *Store) commitNow(ctx context.Context, txn func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	for {
		response, err := txn(s.client.Txn(clientv3.WithRequireLeader(ctx))).Commit()
		if !errors.Is(err, rpctypes.ErrNoLeader) || ctx.Err() != nil {
			return response, err
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// get waits for a slot, and reads. It tries one member after the other.
func (s *Store) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return inSlot(ctx, s.slots, func() (*clientv3.GetResponse, error) { return s.getNow(ctx, key, options...) })
}

// getNow reads. It tries one member after the other.
func (s *Store) getNow(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return ask(ctx, attemptTime, func(ctx context.Context) (*clientv3.GetResponse, error) { return s.client.Get(ctx, key, options...) })
}
