// Package crashstore has a store as seen by a process that crashes at one of its writes. It is for tests alone.
package crashstore

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// ErrCrashed is the error of the step at which the process crashes, and of all that follow.
var ErrCrashed = errors.New("the process has crashed")

// Crash says when a process crashes.
type Crash struct {
	// After is how many steps come before the last one.
	After int
	// Arrives says that the last step takes effect, although it fails. That is up to the network.
	Arrives bool
}

// Store is a store whose writes are the steps of a process. Its methods may be called from several goroutines at once.
type Store struct {
	store.Store

	crash   Crash
	crashed chan struct{}

	mu    sync.Mutex
	steps int
}

// New returns a store whose writes go to another one until the crash.
func New(under store.Store, crash Crash) *Store {
	return &Store{Store: under, crash: crash, crashed: make(chan struct{})}
}

// Kinds returns the kinds of the store beneath.
func (s *Store) Kinds() *store.KindTable { return store.KindsOf(s.Store) }

// Step takes a step of the process that may be none of its writes.
func (s *Store) Step(do func() error) error {
	s.mu.Lock()
	before := s.steps
	s.steps++
	if before == s.crash.After {
		close(s.crashed)
	}
	s.mu.Unlock()
	if before < s.crash.After {
		return do()
	}
	if before == s.crash.After && s.crash.Arrives {
		_ = do()
	}
	return ErrCrashed
}

// Create implements [store.Store].
func (s *Store) Create(ctx context.Context, obj runtime.Object) (created runtime.Object, err error) {
	err = s.Step(func() error { created, err = s.Store.Create(ctx, obj); return err })
	return created, err
}

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, obj runtime.Object) (updated runtime.Object, err error) {
	err = s.Step(func() error { updated, err = s.Store.Update(ctx, obj); return err })
	return updated, err
}

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	return s.Step(func() error { return s.Store.Delete(ctx, key, p) })
}

// Crashed is closed when the process has crashed.
func (s *Store) Crashed() <-chan struct{} { return s.crashed }

// IsCrashed reports whether the process has crashed.
func (s *Store) IsCrashed() bool {
	select {
	case <-s.crashed:
		return true
	default:
		return false
	}
}

// Steps returns how many steps there were, those after the crash included.
func (s *Store) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// Transactor is a [Store] that has transactions. One of them is one step.
type Transactor struct {
	*Store

	// Under is the store beneath.
	Under store.Transactor
}

// Commit implements [store.Transactor].
func (s Transactor) Commit(ctx context.Context, t store.Transaction) (objects []runtime.Object, err error) {
	err = s.Step(func() error { objects, err = s.Under.Commit(ctx, t); return err })
	return objects, err
}
