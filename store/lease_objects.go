package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/backoff"
)

// leaseObjects is a [Lessor] that keeps leases as Lease objects in any [Store].
//
// No process compares the times in such an object with its own clock. A process that waits for a lease watches its object, and
// takes the lease when the object has not changed for the lease's duration and a tenth longer, by its own clock. The token is the number of
// times that the lease was taken (leaseTransitions), so that Lease objects are not to be deleted while anything outside of the
// store depends on tokens; the store itself tells a lease from one before its object was deleted. In a [Transaction] a lease counts as held until another has taken it.
type leaseObjects struct {
	store   Store
	options LeaseObjectsOptions
}

var _ Lessor = (*leaseObjects)(nil)

// LeaseObjectsOptions are the options of [NewLeaseObjects]. The zero value is useful.
type LeaseObjectsOptions struct {
	// Logger gets failures of the store that are waited out; nil discards it.
	Logger *slog.Logger
	// Jitter is the greatest part of the wait after such a failure that is left out at random, between 0 and 1; zero means 0.1,
	// less than zero none.
	Jitter float64
}

// NewLeaseObjects returns a [Lessor] that keeps leases as Lease objects in s. It starts nothing and does no I/O.
func NewLeaseObjects(s Store, options LeaseObjectsOptions) Lessor {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &leaseObjects{store: s, options: options}
}

// AcquireLease implements [Lessor].
func (l *leaseObjects) AcquireLease(ctx context.Context, request LeaseRequest) (Lease, error) {
	request, err := request.Validate()
	if err != nil {
		return Lease{}, err
	}
	wait := leaseWait{leases: l, request: request}
	for failures := 0; ; {
		lease, err := wait.try(ctx)
		switch {
		case err == nil:
			return lease, nil
		case ctx.Err() != nil:
			return Lease{}, wait.ended(ctx)
		case errors.Is(err, ErrInvalid):
			return Lease{}, err
		case errors.Is(err, errTryAgain):
			failures = 0
			continue
		}
		failures++
		l.options.Logger.WarnContext(ctx, "taking a lease will be tried again", "lease", request.Name.String(), "error", err)
		pause(ctx, backoff.Policy{Max: request.TTL, Jitter: l.options.Jitter}.Delay(failures))
	}
}

// errTryAgain says that what was seen is old.
var errTryAgain = errors.New("seen too late")

// leaseWait is one wait for a lease. It belongs to one goroutine.
type leaseWait struct {
	leases  *leaseObjects
	request LeaseRequest
	// seen is the object as it was seen last, nil if there was none, and since when it is as it is.
	seen  *coordinationv1.Lease
	since time.Time
}

// see notes what the object is now.
func (w *leaseWait) see(lease *coordinationv1.Lease) {
	if w.seen == nil || lease == nil || w.seen.UID != lease.UID || w.seen.ResourceVersion != lease.ResourceVersion {
		w.since = time.Now()
	}
	w.seen = lease
}

// free returns how long it is still to be waited.
func (w *leaseWait) free() time.Duration {
	if w.seen == nil || holderOf(w.seen) == "" || holderOf(w.seen) == w.request.Holder {
		return 0
	}
	ttl := ttlOf(w.seen)
	return time.Until(w.since.Add(ttl + ttl/10))
}

// try looks at the lease, waits until it is free and takes it. [errTryAgain] says that the watch has ended, or that another
// process was faster.
func (w *leaseWait) try(ctx context.Context) (Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	items, version, err := ListOf[*coordinationv1.Lease](ctx, w.leases.store, w.request.Name.Namespace)
	if err != nil {
		return Lease{}, err
	}
	w.see(named(items, w.request.Name))
	if w.free() <= 0 {
		return w.take(ctx)
	}
	events, err := w.leases.store.Watch(ctx, Leases, w.request.Name.Namespace, version)
	if err != nil {
		return Lease{}, err
	}
	if err := w.await(ctx, events); err != nil {
		return Lease{}, err
	}
	return w.take(ctx)
}

// await waits until the lease is free.
func (w *leaseWait) await(ctx context.Context, events <-chan Event) error {
	timer := time.NewTimer(w.free())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case event, open := <-events:
			if !open {
				return errTryAgain
			}
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok || NameOf(lease) != w.request.Name {
				continue
			}
			if event.Type == Deleted {
				lease = nil
			}
			w.see(lease)
			timer.Reset(max(w.free(), 0))
		}
	}
}

// take writes that the lease is the request's holder's, if it still is what was seen.
func (w *leaseWait) take(ctx context.Context) (Lease, error) {
	now := time.Now()
	var stored *coordinationv1.Lease
	var err error
	if w.seen == nil {
		stored, err = Create(ctx, w.leases.store, w.taken(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.request.Name.Namespace, Name: w.request.Name.Name},
		}, now))
	} else {
		stored, err = Update(ctx, w.leases.store, w.taken(w.seen.DeepCopy(), now))
	}
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrAlreadyExists) || errors.Is(err, ErrNotFound) {
		return Lease{}, errTryAgain
	}
	if err != nil {
		return Lease{}, err
	}
	return Lease{
		Name: w.request.Name, Holder: w.request.Holder, TTL: w.request.TTL,
		Token: tokenOf(stored), Expires: now.Add(w.request.TTL), ID: string(stored.UID),
	}, nil
}

// taken changes lease into one that the request's holder has.
func (w *leaseWait) taken(lease *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(now)
	seconds := int32(w.request.TTL / time.Second)
	transitions := int32(tokenOf(lease) + 1)
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &w.request.Holder, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions,
		AcquireTime: &at, RenewTime: &at,
	}
	return lease
}

// ended is the error of a wait whose context has ended.
func (w *leaseWait) ended(ctx context.Context) error {
	if w.seen == nil || holderOf(w.seen) == "" {
		return fmt.Errorf("lease %q: %w", w.request.Name, context.Cause(ctx))
	}
	return fmt.Errorf("lease %q is held by %q: %w: %w", w.request.Name, holderOf(w.seen), ErrLeaseHeld, context.Cause(ctx))
}

// RenewLease implements [Lessor]. A lease that has expired and that no other process has taken since is renewed.
func (l *leaseObjects) RenewLease(ctx context.Context, lease Lease) (Lease, error) {
	for {
		began := time.Now()
		err := l.change(ctx, lease, func(spec *coordinationv1.LeaseSpec) {
			at := metav1.NewMicroTime(began)
			spec.RenewTime = &at
		})
		if errors.Is(err, ErrConflict) {
			continue // The object changes for other reasons, too; the process that has taken it is found by the next read.
		}
		if err != nil {
			return lease, fmt.Errorf("renew: %w", err)
		}
		lease.Expires = began.Add(lease.TTL)
		return lease, nil
	}
}

// ReleaseLease implements [Lessor].
func (l *leaseObjects) ReleaseLease(ctx context.Context, lease Lease) error {
	for {
		err := l.change(ctx, lease, func(spec *coordinationv1.LeaseSpec) { spec.HolderIdentity = nil })
		switch {
		case errors.Is(err, ErrConflict):
		case err == nil, errors.Is(err, ErrLeaseLost):
			return nil
		default:
			return fmt.Errorf("release: %w", err)
		}
	}
}

// change writes to the object of a lease that is held.
func (l *leaseObjects) change(ctx context.Context, lease Lease, change func(*coordinationv1.LeaseSpec)) error {
	object, err := Get[*coordinationv1.Lease](ctx, l.store, lease.Name.Namespace, lease.Name.Name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if err != nil {
		object = nil
	}
	if err := lease.checkObject(object); err != nil {
		return err
	}
	change(&object.Spec)
	_, err = Update(ctx, l.store, object)
	if errors.Is(err, ErrNotFound) {
		return lease.lost(err)
	}
	return err
}

// check reports whether obj, which is nil when there is none, is the lease as it is held.
func (l Lease) check(obj Object) error {
	object, _ := obj.(*coordinationv1.Lease)
	return l.checkObject(object)
}

func (l Lease) checkObject(object *coordinationv1.Lease) error {
	switch {
	case object == nil:
		return l.lost(ErrNotFound)
	case holderOf(object) == "":
		return l.lost(errors.New("it has no holder"))
	case l.ID != "" && l.ID != string(object.UID):
		return l.lost(errors.New("its object was deleted, and made anew"))
	case holderOf(object) != l.Holder || tokenOf(object) != l.Token:
		return l.lost(fmt.Errorf("%q holds it with token %d", holderOf(object), tokenOf(object)))
	}
	return nil
}

func (l Lease) lost(cause error) error {
	return fmt.Errorf("lease %q of %q with token %d: %w: %w", l.Name, l.Holder, l.Token, ErrLeaseLost, cause)
}

func named(leases []*coordinationv1.Lease, name types.NamespacedName) *coordinationv1.Lease {
	for _, lease := range leases {
		if NameOf(lease) == name {
			return lease
		}
	}
	return nil
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func tokenOf(lease *coordinationv1.Lease) uint64 {
	if lease.Spec.LeaseTransitions == nil || *lease.Spec.LeaseTransitions < 0 {
		return 0
	}
	return uint64(*lease.Spec.LeaseTransitions)
}

func ttlOf(lease *coordinationv1.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}
