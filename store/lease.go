package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The sentinels of leases. Match them with errors.Is.
var (
	// ErrLeaseHeld says that somebody else holds the lease.
	ErrLeaseHeld = errors.New("lease is held by another")
	// ErrLeaseLost says that the lease is not held any more: whoever held it must do nothing more under it.
	ErrLeaseLost = errors.New("lease is lost")
)

// Lessor gives out leases: names that one holder has at a time. It is optional for a [Store]; [LessorOf] returns the one that
// goes with any of them.
//
// Only clocks that run at about the same speed are asked for, to within a tenth; what time they show does not matter. As long
// as a holder does nothing under a lease that has expired by its own clock, no two act at once. Where that is not enough, because
// a process may be stopped between looking at its clock and acting, the token tells a late holder from a later one, and
// [Transaction].Leases has the store look.
type Lessor interface {
	// AcquireLease waits until nobody else holds the lease, through failures of the store as well, and takes it. One that its
	// holder has released is free at once, and so is one that the same holder had before: a holder's name belongs to one process
	// at a time. Any other is free when it was not renewed for as long as it lives. When ctx ends first, the error matches that
	// of ctx, and [ErrLeaseHeld] if the lease is known to be held.
	AcquireLease(ctx context.Context, request LeaseRequest) (Lease, error)
	// RenewLease has a lease live for its whole time from now on, and returns it with its new Expires. The error matches
	// [ErrLeaseLost] when it is held by another now, or by nobody; after any other error it may have been renewed.
	RenewLease(ctx context.Context, lease Lease) (Lease, error)
	// ReleaseLease gives a lease up, so that the next holder need not wait. One that is lost already is no error.
	ReleaseLease(ctx context.Context, lease Lease) error
}

// LeaseRequest is what is asked for of a [Lessor].
type LeaseRequest struct {
	// Name is the lease's namespace and name, as Kubernetes allows them. Those who wait for a lease look at all leases of its
	// namespace: give those of nodes, of which there are many, one of their own.
	Name types.NamespacedName
	// Holder is who wants it; not empty, and no other process's.
	Holder string
	// TTL is for how long it lives without being renewed; rounded up to whole seconds. Must be more than zero.
	TTL time.Duration
}

// Lease is a lease that somebody holds, or held. It is a value: renewing returns another one.
type Lease struct {
	// Name, Holder and TTL are those of the request, with the time rounded.
	Name   types.NamespacedName
	Holder string
	TTL    time.Duration
	// Token is greater than that of every holder before. It is the same as long as the lease is held.
	Token uint64
	// Expires is until when, by the clock of this process, nobody else can hold it.
	Expires time.Time
	// ID is what the lessor knows it by; for that alone.
	ID string
}

// LessorOf returns the leases that go with s: its own if it is a [Lessor], and otherwise those that are kept as Lease objects
// in it.
func LessorOf(s Store) Lessor {
	if lessor, ok := s.(Lessor); ok {
		return lessor
	}
	return NewLeaseObjects(s, LeaseObjectsOptions{})
}

// Validate checks a request: for those who implement a [Lessor]. It returns it with its time rounded up. The error matches
// [ErrInvalid].
func (r LeaseRequest) Validate() (LeaseRequest, error) {
	if err := leaseKey(r.Name).Validate(); err != nil {
		return r, err
	}
	if r.Holder == "" {
		return r, fmt.Errorf("lease %q: its holder has no name: %w", r.Name, ErrInvalid)
	}
	if r.TTL <= 0 || r.TTL > math.MaxInt32*time.Second {
		return r, fmt.Errorf("lease %q: a time to live of %v: give one of a second or more: %w", r.Name, r.TTL, ErrInvalid)
	}
	r.TTL = (r.TTL + time.Second - 1).Truncate(time.Second)
	return r, nil
}

func leaseKey(name types.NamespacedName) Key {
	return Key{Kind: Leases, Namespace: name.Namespace, Name: name.Name}
}
