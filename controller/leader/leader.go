// Package leader lets several processes stand by for one controller. One of them runs it at a time.
//
// Each process calls [Run] with the same lease name and a name of its own. The process with the lease runs the controller, on a
// [store.Store] that refuses its writes from the moment at which another process may have the lease. When it ends, fails or is
// cut off, the next process makes a controller of its own, which reads from the store what the last one left.
//
// # What is guaranteed
//
// On a store with transactions, such as the memory store and that on etcd, each write checks in the store itself whether
// the lease is still held. If a process stops for an hour in the middle of a write, the store refuses that write. On any
// other store, the process checks the lease's expiry by its own clock before each write, and cancels its work when the
// lease expires. If a process stops between the check and the write, the write may still succeed if the object has not
// changed. Plugin calls are not writes. They are bounded by the context that [Run] gives the controller, and their intent
// is recorded before. A process that stops in the middle of a plugin call may finish it after another process leads. The
// context carries the term of the lease to plugins (volume.FencingToken), so storage can refuse such a call.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// defaultTTL is the default for [Options].TTL.
const defaultTTL = 15 * time.Second

// Options are the options of [Run].
type Options struct {
	// Name is the namespace and the name of the lease. All processes that stand by for one controller use the same.
	// Required.
	Name types.NamespacedName
	// Holder is the name of this process. It is unique among the processes. Required.
	Holder string
	// TTL is how long the lease lives without renewal; zero means 15 seconds.
	TTL time.Duration
	// Logger gets a line when this process begins to lead and when it ends; nil discards it.
	Logger *slog.Logger
}

// Run waits until this process is the leader and calls lead. The context of lead ends when this process is no longer the
// leader, and carries the fencing token of this term. The store of lead is the one for a leader's writes. When the lease is
// lost, Run waits for lead to return, and stands by again. Run returns when ctx has ended, or when lead returns while it
// still leads; both with the error of lead, if lead ran. lead is called again for each new term, and must make a new
// controller each time.
func Run(ctx context.Context, s store.Store, options Options, lead func(ctx context.Context, s store.Store) error) error {
	if options.TTL <= 0 {
		options.TTL = defaultTTL
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	request := store.LeaseRequest{Name: options.Name, Holder: options.Holder, TTL: options.TTL}
	if _, err := request.Validate(); err != nil {
		return fmt.Errorf("leader: %w", err)
	}
	for {
		led := false
		err := store.HoldLease(ctx, store.LessorOf(s), request, func(ctx context.Context, lease store.Lease) error {
			led = true
			options.Logger.InfoContext(ctx, "leads", "lease", options.Name.String(), "holder", options.Holder, "token", lease.Token)
			token := volume.FencingToken{Lease: options.Name.String(), Term: lease.Token}
			return lead(volume.WithFencingToken(ctx, token), fence(ctx, s, lease))
		})
		switch {
		case led && errors.Is(err, store.ErrLeaseLost) && ctx.Err() == nil:
			options.Logger.WarnContext(ctx, "leads no more", "lease", options.Name.String(), "holder", options.Holder, "error", err)
		case !led && ctx.Err() != nil:
			return nil //nolint:nilerr // This process never led.
		default:
			return err
		}
	}
}
