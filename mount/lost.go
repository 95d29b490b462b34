package mount

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
)

// LostError is the error of an operation whose context ended while a system call was under way. The operation was left
// behind and may still have its effect: the error matches [ErrUncertain]. It also matches the context's error.
type LostError struct {
	// Call is the system call, or the step, that did not return, such as "umount2".
	Call string
	// Path is the path that the operation is about.
	Path string

	cause error
	done  <-chan struct{}
}

// NewLostError returns the error of an operation that was left behind because of cause, the context's error, and that
// ends when done is closed. It is for other implementations of [Interface].
func NewLostError(call, path string, cause error, done <-chan struct{}) *LostError {
	return &LostError{Call: call, Path: path, cause: cause, done: done}
}

// Error names the call and the path.
func (e *LostError) Error() string {
	return fmt.Sprintf("%s of %q has not returned and was left behind: %v", e.Call, e.Path, e.cause)
}

// Uncertain returns true.
func (e *LostError) Uncertain() bool { return true }

// Done returns a channel that is closed when the operation has really ended. It never is if the kernel never returns.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is ErrUncertain.
func (e *LostError) Is(target error) bool { return target == ErrUncertain }

// Unwrap returns the context's error.
func (e *LostError) Unwrap() error { return e.cause }

// LostCall is an operation that was left behind and has not ended.
type LostCall struct {
	// Call is the system call, or the step, that it was last seen in.
	Call string
	// Path is the path that the operation is about.
	Path string
}

// callKind separates operations that change the world from those that only look. The latter need not wait for the former.
type callKind uint8

const (
	change callKind = iota
	look
)

type callKey struct {
	kind callKind
	path string
}

// steps is where an operation says what it is doing, for the caller that may leave it behind.
type steps struct {
	name atomic.Pointer[string]
}

// operation is what runs in a goroutine of its own. Its context is that of the caller.
type operation func(context.Context, *steps) error

// begin says that the named system call comes next. It fails when the caller has gone, so that nothing more is begun.
func (s *steps) begin(ctx context.Context, name string) error {
	s.note(name)
	return ctx.Err()
}

// note is begin for a step that must be taken in any case, such as a clean-up.
func (s *steps) note(name string) { s.name.Store(&name) }

func (s *steps) current() string {
	if name := s.name.Load(); name != nil {
		return *name
	}
	return "start"
}

// slot is one operation that holds its path.
type slot struct {
	steps *steps
	ended chan struct{} // closed when the operation has returned
	gone  chan struct{} // closed when its caller has left
	isOut bool          // guarded by calls.mu; whether gone is closed
}

// calls runs operations, one at a time for each path, and counts those that were left behind.
type calls struct {
	logger *slog.Logger
	max    int

	mu    sync.Mutex
	slots map[callKey]*slot
	out   int // slots whose caller has left
}

func newCalls(maxLost int, logger *slog.Logger) *calls {
	return &calls{max: maxLost, logger: logger, slots: map[callKey]*slot{}}
}

// call is do for an operation that only looks and has a result.
func call[T any](ctx context.Context, c *calls, path string, op func(context.Context, *steps) (T, error)) (T, error) {
	result := new(T)
	err := c.do(ctx, callKey{look, path}, func(ctx context.Context, s *steps) error {
		var err error
		*result, err = op(ctx, s)
		return err
	})
	if err != nil {
		return *new(T), err // a lost operation may still write to result
	}
	return *result, nil
}

// do runs op in a goroutine of its own and waits for it or for ctx, whichever ends first.
func (c *calls) do(ctx context.Context, key callKey, op operation) error {
	s, err := c.acquire(ctx, key)
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		err := op(ctx, s.steps)
		c.release(key, s)
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	if lost := c.leave(ctx, key, s); lost != nil {
		return lost
	}
	return <-result
}

// acquire takes the slot of key. It waits while an operation holds it whose caller still waits.
func (c *calls) acquire(ctx context.Context, key callKey) (*slot, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%q was not touched: %w: %w", key.path, ErrTransient, err)
		}
		mine, other, err := c.tryAcquire(key)
		if err != nil || mine != nil {
			return mine, err
		}
		select {
		case <-other.ended:
		case <-other.gone:
		case <-ctx.Done():
		}
	}
}

func (c *calls) tryAcquire(key callKey) (mine, other *slot, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.slots[key]; s != nil {
		if s.isOut {
			return nil, nil, fmt.Errorf("%q: %s has not returned: %w: %w", key.path, s.steps.current(), ErrStuck, ErrTransient)
		}
		return nil, s, nil
	}
	if c.out >= c.max {
		return nil, nil, fmt.Errorf("%q: %d calls have not returned: %w: %w", key.path, c.out, ErrStuck, ErrTransient)
	}
	s := &slot{steps: &steps{}, ended: make(chan struct{}), gone: make(chan struct{})}
	c.slots[key] = s
	return s, nil, nil
}

// leave marks the operation as lost. It returns nil when the operation has just ended.
func (c *calls) leave(ctx context.Context, key callKey, s *slot) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots[key] != s {
		return nil
	}
	s.isOut = true
	c.out++
	close(s.gone)
	return NewLostError(s.steps.current(), key.path, ctx.Err(), s.ended)
}

func (c *calls) release(key callKey, s *slot) {
	c.mu.Lock()
	delete(c.slots, key)
	wasLost := s.isOut
	if wasLost {
		c.out--
	}
	c.mu.Unlock()
	close(s.ended)
	if wasLost {
		c.logger.Info("a lost call has ended", "call", s.steps.current(), "path", key.path)
	}
}

func (c *calls) lost() []LostCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []LostCall
	for key, s := range c.slots {
		if s.isOut {
			all = append(all, LostCall{Call: s.steps.current(), Path: key.path})
		}
	}
	slices.SortFunc(all, func(a, b LostCall) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Call, b.Call)) })
	return all
}
