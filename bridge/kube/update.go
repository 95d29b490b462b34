package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// Update implements [store.Store]. Of the kinds with a status only what has changed is written, for which the object is read first:
// the status, or the rest, or both by two requests, of which others see the first before the second. The rest comes first, so that
// no status tells of what is not there yet; but before the update that takes the last finalizer off, after which there is nothing
// left to be written.
//
// When the second request fails, the error says that the first was done. Reading again shows it, and repeating the update then does
// what is left.
func (s *Store) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	wanted, key, err := s.accept(obj)
	if err == nil && wanted.GetResourceVersion() == "" {
		err = fmt.Errorf("%s has no resource version: read it before you update it: %w", key, store.ErrInvalid)
	}
	if err = errors.Join(ctx.Err(), err); err != nil {
		return nil, err
	}
	u := update{resource: s.resources[key.Kind](key.Namespace), key: key}
	if !hasStatus(wanted) && wanted.GetUID() != "" {
		return u.asWhole(ctx, wanted)
	}
	old, err := u.read(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := planned(s.kinds, wanted, old)
	if err != nil {
		return nil, err
	}
	return u.inParts(ctx, changed, old)
}

// planned returns what is to be in the place of old, by the rules that all stores have.
func planned(kinds *store.KindTable, wanted, old store.Object) (store.Object, error) {
	plan, err := kinds.NewTransactionPlan(store.Transaction{Writes: []store.Write{store.ToUpdate(wanted)}})
	if err != nil {
		return nil, err
	}
	changes, err := plan.Changes([]store.Object{old})
	if err != nil {
		return nil, err
	}
	return changes[0].Object, nil
}

// update is one update.
type update struct {
	resource resource
	key      store.Key
}

// asWhole writes an object by one request. Its UID is part of the condition.
func (u update) asWhole(ctx context.Context, wanted store.Object) (runtime.Object, error) {
	updated, err := u.resource.update(ctx, wanted)
	if err != nil {
		return nil, u.failed(ctx, wanted, "update "+u.key.String(), err)
	}
	return updated, nil
}

// inParts writes what is other in wanted than in old.
func (u update) inParts(ctx context.Context, wanted, old store.Object) (runtime.Object, error) {
	now, what := old, "update "+u.key.String()
	writeStatus := !sameStatus(wanted, old)
	if ends := wanted.GetDeletionTimestamp() != nil && len(wanted.GetFinalizers()) == 0; ends && writeStatus {
		updated, err := u.resource.updateStatus(ctx, joined(now, wanted))
		if err != nil {
			return nil, u.failed(ctx, wanted, what, err)
		}
		now, writeStatus, what = updated, false, u.key.String()+" has its status written, the rest is not"
	}
	if !sameRest(wanted, old) {
		updated, err := u.resource.update(ctx, at(wanted, now.GetResourceVersion()))
		if err != nil {
			return nil, u.failed(ctx, wanted, what, err)
		}
		now, what = updated, u.key.String()+" is updated, its status is not"
	}
	if !writeStatus {
		return now, nil
	}
	updated, err := u.status(ctx, joined(now, wanted), old)
	if err != nil {
		return nil, u.failed(ctx, wanted, what, err)
	}
	return updated, nil
}

// status writes the status of wanted. When the rest was written just before, and others have changed the rest since, the condition is
// that the status is still that of old.
func (u update) status(ctx context.Context, wanted, old store.Object) (store.Object, error) {
	for {
		updated, err := u.resource.updateStatus(ctx, wanted)
		if !apierrors.IsConflict(err) || wanted.GetResourceVersion() == old.GetResourceVersion() {
			return updated, err
		}
		now, readErr := u.resource.get(ctx, u.key.Name)
		if readErr != nil || now.GetUID() != wanted.GetUID() || !sameStatus(now, old) {
			return nil, err
		}
		wanted = joined(now, wanted)
	}
}

func (u update) read(ctx context.Context) (store.Object, error) {
	obj, err := u.resource.get(ctx, u.key.Name)
	if err != nil {
		return nil, classify(ctx, "update "+u.key.String(), err)
	}
	return obj, nil
}

// failed says why a write failed. The API server calls it a conflict, too, when the object of that name is another one by now.
func (u update) failed(ctx context.Context, wanted store.Object, what string, err error) error {
	if apierrors.IsConflict(err) && ctx.Err() == nil {
		now, readErr := u.resource.get(ctx, u.key.Name)
		if apierrors.IsNotFound(readErr) {
			err = readErr
		} else if readErr == nil && now.GetUID() != wanted.GetUID() {
			return fmt.Errorf("%s: it has another UID: %w: %w", what, store.ErrNotFound, err)
		}
	}
	return classify(ctx, what, err)
}
