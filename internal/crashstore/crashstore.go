// Package crashstore has a store that fails from one of its writes on, as for a process that crashes there. It is for tests only.
package crashstore

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// ErrCrashed is the error of the step at which the process crashes, and of all later steps.
var ErrCrashed = errors.New("the process has crashed")

// Crash says at which step a process crashes.
type Crash struct {
	// After is the number of steps before that step.
	After int
	// Arrives says that the step takes effect, although it fails: the request reaches the store before the process crashes.
	Arrives bool
}

// Store counts the writes of a process to another store as its steps, and fails them from the crash on. Its methods may be called
// from several goroutines at once.
type Store struct {
	store.Store

	crash   Crash
	crashed chan struct{}

	mu    sync.Mutex
	steps int
}

// New returns a store that passes writes to under until the crash. Reads always reach under.
func New(under store.Store, crash Crash) *Store {
	return &Store{Store: under, crash: crash, crashed: make(chan struct{})}
}

// Kinds returns the kinds of the other store.
func (s *Store) Kinds() *store.KindTable { return store.KindsOf(s.Store) }

// Step makes a step that calls do, such as a call of a plugin: it counts and fails as a write does.
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

// Crashed returns a channel that is closed when the process has crashed.
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

// Steps returns the number of steps, including those after the crash.
func (s *Store) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps
}

// Transactor is a [Store] with transactions. A transaction is one step.
type Transactor struct {
	*Store

	// Under is the other store.
	Under store.Transactor
}

// Commit implements [store.Transactor].
func (s Transactor) Commit(ctx context.Context, t store.Transaction) (objects []runtime.Object, err error) {
	err = s.Step(func() error { objects, err = s.Under.Commit(ctx, t); return err })
	return objects, err
}
