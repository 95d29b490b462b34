package store

import (
	"context"
	"errors"
	"time"
)

// HoldLease acquires a lease, and calls work while it holds the lease. work gets the acquired lease with its fencing token, and a
// context. The context ends with ctx, and at the latest when the lease has expired: its cause then matches [ErrLeaseLost]. HoldLease
// renews the lease three times in its duration. When work returns, HoldLease releases the lease and returns the error of work,
// together with ErrLeaseLost if the lease was lost. If ctx ends before the lease is acquired, HoldLease does not call work.
//
// work must return soon after its context has ended. HoldLease waits for it, and meanwhile another process may hold the lease.
func HoldLease(ctx context.Context, lessor Lessor, request LeaseRequest, work func(ctx context.Context, lease Lease) error) error {
	lease, err := lessor.AcquireLease(ctx, request)
	if err != nil {
		return err
	}
	working, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	renewing, stop := context.WithCancel(working)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		keepLease(renewing, lessor, lease, lose)
	}()
	err = work(working, lease)
	if cause := context.Cause(working); errors.Is(cause, ErrLeaseLost) {
		err = errors.Join(err, cause)
	}
	stop()
	<-done
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease.TTL)
	defer cancel()
	return errors.Join(err, lessor.ReleaseLease(ending, lease))
}

// keepLease renews a lease until ctx ends. It calls lose when the lease has expired or is known to be lost.
func keepLease(ctx context.Context, lessor Lessor, lease Lease, lose context.CancelCauseFunc) {
	expiry := time.AfterFunc(time.Until(lease.Expires), func() { lose(lease.lost(context.DeadlineExceeded)) })
	defer expiry.Stop()
	for failed := false; ; {
		wait := lease.TTL / 3
		if failed {
			wait = lease.TTL / 20
		}
		pause(ctx, wait)
		if ctx.Err() != nil {
			return
		}
		renewed, err := lessor.RenewLease(ctx, lease)
		if errors.Is(err, ErrLeaseLost) {
			lose(err)
			return
		}
		failed = err != nil
		if !failed && expiry.Stop() {
			lease = renewed
			expiry.Reset(time.Until(lease.Expires))
		}
	}
}
