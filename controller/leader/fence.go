package leader

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// fence returns the store for the controller of a leader with this lease. holding ends when another process may have the
// lease.
func fence(holding context.Context, s store.Store, lease store.Lease) store.Store {
	if transactor, transacts := s.(store.Transactor); transacts {
		return &tokenFence{Transactor: transactor, lease: lease}
	}
	return &clockFence{Store: s, during: func(ctx context.Context, write func(ctx context.Context) error) error {
		return during(ctx, holding, write)
	}}
}

// during calls write with a context that ends with ctx or holding. If holding has ended, it does not call write.
func during(ctx, holding context.Context, write func(ctx context.Context) error) error {
	if holding.Err() != nil {
		return fmt.Errorf("%w: nothing is written any more", store.ErrLeaseLost)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(holding, func() { cancel(store.ErrLeaseLost) })()
	return write(ctx)
}

// tokenFence makes the store itself check the lease with each write.
type tokenFence struct {
	store.Transactor

	lease store.Lease
}

var _ store.Transactor = (*tokenFence)(nil)

// Kinds returns the kinds that the store keeps.
func (f *tokenFence) Kinds() *store.KindTable { return store.KindsOf(f.Transactor) }

// Commit implements [store.Transactor].
func (f *tokenFence) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	t.Leases = append([]store.Lease{f.lease}, t.Leases...)
	return f.Transactor.Commit(ctx, t)
}

func (f *tokenFence) write(ctx context.Context, w store.Write) (runtime.Object, error) {
	objects, err := f.Commit(ctx, store.Transaction{Writes: []store.Write{w}})
	if err != nil || len(objects) == 0 {
		return nil, err
	}
	return objects[0], nil
}

// Create implements [store.Store].
func (f *tokenFence) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return f.write(ctx, store.ToCreate(obj))
}

// Update implements [store.Store].
func (f *tokenFence) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return f.write(ctx, store.ToUpdate(obj))
}

// Delete implements [store.Store].
func (f *tokenFence) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	_, err := f.write(ctx, store.ToDelete(key, preconditions))
	return err
}

// clockFence refuses all writes once the lease has expired by the clock of this process.
type clockFence struct {
	store.Store

	during func(ctx context.Context, write func(ctx context.Context) error) error
}

// Kinds returns the kinds that the store keeps.
func (f *clockFence) Kinds() *store.KindTable { return store.KindsOf(f.Store) }

// Create implements [store.Store].
func (f *clockFence) Create(ctx context.Context, obj runtime.Object) (created runtime.Object, err error) {
	err = f.during(ctx, func(ctx context.Context) error {
		created, err = f.Store.Create(ctx, obj)
		return err
	})
	return created, err
}

// Update implements [store.Store].
func (f *clockFence) Update(ctx context.Context, obj runtime.Object) (updated runtime.Object, err error) {
	err = f.during(ctx, func(ctx context.Context) error {
		updated, err = f.Store.Update(ctx, obj)
		return err
	})
	return updated, err
}

// Delete implements [store.Store].
func (f *clockFence) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	return f.during(ctx, func(ctx context.Context) error { return f.Store.Delete(ctx, key, preconditions) })
}
