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
	// ErrLeaseHeld says that another holder has the lease.
	ErrLeaseHeld = errors.New("lease is held by another")
	// ErrLeaseLost says that the lease is no longer held. Its former holder must do nothing more under it.
	ErrLeaseLost = errors.New("lease is lost")
)

// Lessor grants leases: names that one holder has at a time. It is optional for a [Store]; [LessorOf] returns the Lessor
// for any store.
//
// The clocks of all processes must run at about the same speed, to within a tenth; the time that they show does not matter.
// As long as a holder does nothing under a lease that has expired by its own clock, no two act at once. A process may be
// stopped between looking at its clock and acting. Where that matters, the token distinguishes a late holder from a later
// one, and with [Transaction].Leases the store itself checks the lease.
type Lessor interface {
	// AcquireLease waits until no other holder has the lease, and takes it. Failures of the store do not end the wait. A
	// lease that its holder has released is free at once. So is one that the same holder had before, because a holder's
	// name belongs to one process at a time. Any other lease is free if it was not renewed for its TTL. If ctx ends first,
	// the error matches that of ctx, and [ErrLeaseHeld] if the lease is known to be held.
	AcquireLease(ctx context.Context, request LeaseRequest) (Lease, error)
	// RenewLease makes a lease live for its whole TTL from now on, and returns it with its new Expires. The error matches
	// [ErrLeaseLost] if another holder has the lease now, or none. After any other error it may have been renewed.
	RenewLease(ctx context.Context, lease Lease) (Lease, error)
	// ReleaseLease releases a lease, so the next holder need not wait. A lease that is lost already is no error.
	ReleaseLease(ctx context.Context, lease Lease) error
}

// LeaseRequest is what is asked for of a [Lessor].
type LeaseRequest struct {
	// Name is the lease's namespace and name, as Kubernetes allows them. A process that waits for a lease looks at all
	// leases of its namespace. So give the leases of nodes, of which there are many, a namespace of their own.
	Name types.NamespacedName
	// Holder is the name of the process that wants the lease. It must not be empty, and no other process may have it.
	Holder string
	// TTL is how long the lease lives without being renewed, rounded up to whole seconds. It must be more than zero.
	TTL time.Duration
}

// Lease is a lease that is, or was, held. It is a value: renewing returns another one.
type Lease struct {
	// Name, Holder and TTL are those of the request, with the time rounded.
	Name   types.NamespacedName
	Holder string
	TTL    time.Duration
	// Token is greater than that of every holder before. It is the same as long as the lease is held.
	Token uint64
	// Expires is the time, by the clock of this process, until which no other holder can have the lease.
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
