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

// attemptTime is how long one member is waited for before another one is asked. etcd's client takes members in turn, also one
// that is cut off from the others and can answer nothing.
const attemptTime = time.Second

// ask makes a call that may be made twice, of one member after the other until one answers or ctx ends.
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

// commit does a transaction that writes. It is asked for again only where it was not begun, of a member that says that it has
// no leader: after any other failure it may have been done.
func (s *Store) commit(ctx context.Context, txn func(clientv3.Txn) clientv3.Txn) (*clientv3.TxnResponse, error) {
	for {
		response, err := txn(s.client.Txn(clientv3.WithRequireLeader(ctx))).Commit()
		if !errors.Is(err, rpctypes.ErrNoLeader) || ctx.Err() != nil {
			return response, err
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// get reads, of one member after the other.
func (s *Store) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return ask(ctx, attemptTime, func(ctx context.Context) (*clientv3.GetResponse, error) { return s.client.Get(ctx, key, options...) })
}
