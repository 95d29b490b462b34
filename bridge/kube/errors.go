package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

// ErrDenied says that the API server does not let this client do what it asked for: mend its credentials or its role, or what the
// error names, such as a quota. Match it with errors.Is.
var ErrDenied = errors.New("denied by the API server")

// sentinels say what an answer of the API server means to a store. An error that none of them is for may pass: the server was busy,
// or could not be reached.
var sentinels = []struct {
	answered func(error) bool
	means    error
}{
	{apierrors.IsNotFound, store.ErrNotFound},
	{apierrors.IsAlreadyExists, store.ErrAlreadyExists},
	{apierrors.IsConflict, store.ErrConflict},
	{isForgotten, store.ErrCompacted},
	{apierrors.IsInvalid, store.ErrInvalid},
	{apierrors.IsBadRequest, store.ErrInvalid},
	{apierrors.IsRequestEntityTooLargeError, store.ErrInvalid},
	{apierrors.IsUnauthorized, ErrDenied},
	{apierrors.IsForbidden, ErrDenied},
}

// isForgotten reports whether a version is one that the API server does not know: too old, or of an etcd that was replaced by a
// backup.
func isForgotten(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// classify gives an error of client-go the words and the sentinels of a store. The error itself is matched as well, so that its
// status can be read.
func classify(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), ctx.Err()))
	}
	for _, s := range sentinels {
		if s.answered(err) {
			return fmt.Errorf("%s: %w: %w", what, s.means, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
