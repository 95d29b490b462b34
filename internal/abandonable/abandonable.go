package abandonable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
)

// DefaultMax is the default for [Options].Max.
const DefaultMax = 128

// Options configures [Calls].
type Options struct {
	// Max is the number of abandoned operations at which no further one starts. Zero means DefaultMax.
	Max int
	// Grace is the time between the end of its context and the moment when an operation is abandoned. It is for operations
	// that then end by themselves, such as a child process that is killed.
	Grace time.Duration
	// Logger gets a line when an abandoned operation has ended. Nil discards it.
	Logger *slog.Logger
	// Stuck is matched by the error of an operation that is refused because of abandoned ones. Required.
	Stuck error
}

// Key identifies what an operation works on. Operations with equal keys exclude each other.
type Key struct {
	// Look is true for an operation that only reads. It does not wait for one that changes.
	Look bool
	// Beside is true for an operation that is meant to end a hanging one. It does not wait for that one.
	Beside bool
	// Path is the path on which the operation works.
	Path string
}

// Call is an operation that was abandoned and has not ended.
type Call struct {
	// Name is the last step that the operation reported.
	Name string
	// Path is the path on which it works.
	Path string
}

// slot is an operation that holds its key. Calls.mu guards its channels.
type slot struct {
	steps steps
	// ended closes when the operation has returned. It is nil unless the operation was abandoned.
	ended chan struct{}
	// free closes when the operation has returned or is abandoned. It is nil unless another operation waits for that.
	free chan struct{}
}

// wake wakes the operations that wait for the slot.
func (s *slot) wake() {
	if s.free != nil {
		close(s.free)
		s.free = nil
	}
}

// Calls runs operations, one at a time for each key, and counts the abandoned ones. Make it with [New]. Its methods may be
// called from several goroutines at once.
type Calls struct {
	options Options

	mu    sync.Mutex
	slots map[Key]*slot
	out   int // the number of abandoned operations
}

// New returns Calls. It starts nothing.
func New(options Options) *Calls {
	if options.Max <= 0 {
		options.Max = DefaultMax
	}
	return &Calls{options: options, slots: map[Key]*slot{}}
}

// Value is [Calls.Do] for an operation with a result. The result is the zero value if the operation failed or was
// abandoned.
func Value[T any](ctx context.Context, c *Calls, key Key, op func(context.Context) (T, error)) (T, error) {
	result := new(T)
	err := c.Do(ctx, key, func(ctx context.Context) (err error) {
		*result, err = op(ctx)
		return err
	})
	if err != nil {
		return *new(T), err // An abandoned operation may still write to result.
	}
	return *result, nil
}

// Do runs op and waits for op or ctx, whichever ends first. op gets ctx with a place to report its steps. If op did not
// begin, the error matches outcome.ErrTransient. op runs in the goroutine of the caller if the caller cannot leave, because
// ctx never ends, or if another watch abandons the caller together with op (see [Guarded]).
func (c *Calls) Do(ctx context.Context, key Key, op func(context.Context) error) error {
	s, err := c.acquire(ctx, key)
	if err != nil {
		return err
	}
	if isGuarded(ctx) || ctx.Done() == nil {
		return c.doHere(ctx, key, s, op)
	}
	var e ending
	left := Await(ctx, c.options.Grace, func() { c.run(ctx, key, s, op, &e) })
	if left == nil {
		return e.deliver()
	}
	if abandoned := c.abandon(ctx, key, s); abandoned != nil {
		return abandoned
	}
	<-left
	return e.deliver()
}

// doHere runs op in the goroutine of its caller. A grace after the end of ctx, it marks op as abandoned, for other
// operations. The caller still gets the result of op.
func (c *Calls) doHere(ctx context.Context, key Key, s *slot, op func(context.Context) error) error {
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(c.options.Grace, func() { _ = c.abandon(ctx, key, s) }) // The caller gets what op returns.
	})
	defer stop()
	var e ending
	c.run(ctx, key, s, op, &e)
	return e.deliver()
}

// ending is how an operation ended.
type ending struct {
	err      error
	panicked any
	exited   bool
}

// deliver returns the error, or repeats the panic or the Goexit, in the caller.
func (e ending) deliver() error {
	if e.exited {
		runtime.Goexit()
	}
	if e.panicked != nil {
		panic(e.panicked)
	}
	return e.err
}

// run runs op and stores how it ended.
func (c *Calls) run(ctx context.Context, key Key, s *slot, op func(context.Context) error, e *ending) {
	e.exited = true
	defer func() {
		if e.exited {
			e.panicked = recover()
			e.exited = e.panicked == nil
		}
		wasAbandoned := c.release(key, s)
		if wasAbandoned && e.panicked != nil {
			panic(e.panicked)
		}
	}()
	e.err = op(context.WithValue(ctx, stepsKey{}, &s.steps))
	e.exited = false
}

// acquire takes the slot of key. It waits while another operation holds the slot, unless that one is abandoned.
func (c *Calls) acquire(ctx context.Context, key Key) (*slot, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%q was not touched: %w: %w", key.Path, outcome.ErrTransient, err)
		}
		mine, free, err := c.tryAcquire(key)
		if err != nil || mine != nil {
			return mine, err
		}
		select {
		case <-free:
		case <-ctx.Done():
		}
	}
}

// tryAcquire takes the slot of key. If it is taken, it returns a channel that closes when the slot may be free.
func (c *Calls) tryAcquire(key Key) (mine *slot, free <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.slots[key]; s != nil {
		if s.ended != nil {
			return nil, nil, c.refusal(fmt.Errorf("%q: %s has not returned", key.Path, s.steps.current()))
		}
		if s.free == nil {
			s.free = make(chan struct{})
		}
		return nil, s.free, nil
	}
	if c.out >= c.options.Max {
		return nil, nil, c.refusal(fmt.Errorf("%q: %d calls have not returned", key.Path, c.out))
	}
	s := &slot{}
	c.slots[key] = s
	return s, nil, nil
}

func (c *Calls) refusal(err error) error {
	return fmt.Errorf("%w: %w: %w", err, c.options.Stuck, outcome.ErrTransient)
}

// abandon marks the operation as abandoned. It returns nil if the operation has just ended.
func (c *Calls) abandon(ctx context.Context, key Key, s *slot) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots[key] != s {
		return nil
	}
	s.ended = make(chan struct{})
	c.out++
	s.wake()
	cause := ctx.Err()
	if why := context.Cause(ctx); !errors.Is(why, cause) {
		cause = fmt.Errorf("%w: %w", cause, why)
	}
	return outcome.NewAbandonedError(s.steps.current(), key.Path, cause, s.ended)
}

func (c *Calls) release(key Key, s *slot) (wasAbandoned bool) {
	c.mu.Lock()
	delete(c.slots, key)
	if wasAbandoned = s.ended != nil; wasAbandoned {
		c.out--
		close(s.ended)
	}
	s.wake()
	c.mu.Unlock()
	if wasAbandoned && c.options.Logger != nil {
		c.options.Logger.Info("an abandoned call has ended", "call", s.steps.current(), "path", key.Path)
	}
	return wasAbandoned
}

// Abandoned returns the abandoned operations that have not ended, by path.
func (c *Calls) Abandoned() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Call
	for key, s := range c.slots {
		if s.ended != nil {
			all = append(all, Call{Name: s.steps.current(), Path: key.Path})
		}
	}
	slices.SortFunc(all, func(a, b Call) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Name, b.Name)) })
	return all
}
