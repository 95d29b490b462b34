package volume

import (
	"context"
	"errors"
	"fmt"
)

// ErrFenced says that a call was refused because it has an older [FencingToken] than an earlier call for the same volume:
// another leader has taken over. The call changed nothing.
var ErrFenced = errors.New("refused: another leader has taken over")

// FencingToken names the lease, and the term of that lease, in which the control plane makes a call. A leader that was
// suspended beyond its lease may finish a call after another leader has moved the volume. No check before the call prevents
// that. Storage prevents it when it keeps the newest token of each volume and compares it in the step that changes the volume.
//
// Tokens of one lease are compared, those of different leases are not. Never delete the object of a lease: the terms would
// begin again, and such storage would refuse all calls until they exceed those that it has seen.
type FencingToken struct {
	// Lease is the namespace and the name of the lease, as namespace/name.
	Lease string
	// Term is the token of the lease: greater than that of each holder before.
	Term uint64
}

// WithFencingToken returns a context that carries token to plugins. A leader's context has one (controller/leader), and so have
// the contexts of all calls that its controllers make.
func WithFencingToken(ctx context.Context, token FencingToken) context.Context {
	return context.WithValue(ctx, fencingKey{}, token)
}

// FencingTokenFrom returns the token of a call. It returns false when there is none, because there is no election: a node that
// attaches its volumes itself has no leader.
func FencingTokenFrom(ctx context.Context) (FencingToken, bool) {
	token, ok := ctx.Value(fencingKey{}).(FencingToken)
	return token, ok
}

type fencingKey struct{}

// Check returns an error that matches [ErrFenced] when newest, the newest token that was seen for a volume, is of a later term
// of the same lease.
func (t FencingToken) Check(newest FencingToken) error {
	if t.Lease != newest.Lease || t.Term >= newest.Term {
		return nil
	}
	return fmt.Errorf("term %d of lease %q, where a call of term %d was seen: %w", t.Term, t.Lease, newest.Term, ErrFenced)
}

// FencingVolumePlugin is a plugin that may refuse calls of leaders that were replaced.
type FencingVolumePlugin interface {
	AttachableVolumePlugin
	// FencesCalls reports whether Attach, Detach and, where there are any, ExpandVolumeDevice and ModifyVolume are refused with
	// [ErrFenced] when their [FencingToken] is older than one that the storage has seen for the volume. It does no I/O.
	FencesCalls() bool
}
