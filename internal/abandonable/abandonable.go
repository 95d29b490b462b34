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

// DefaultMax is how many abandoned calls are borne unless the options say otherwise.
const DefaultMax = 128

// Options configures [Calls].
type Options struct {
	// Max is the number of abandoned calls at which no further one is started. Zero means DefaultMax.
	Max int
	// Grace is how long an operation whose context has ended is waited for before it is abandoned. It is for operations
	// that end by themselves then, such as a child process that is killed.
	Grace time.Duration
	// Logger is told when an abandoned call has ended. Nil discards.
	Logger *slog.Logger
	// Stuck is matched by the error of an operation that is refused because too many were abandoned. Required.
	Stuck error
}

// Key says which operations exclude each other: those whose keys are equal.
type Key struct {
	// Look is true for an operation that only looks; it need not wait for one that changes.
	Look bool
	// Beside is true for an operation that is to end the one that hangs, and so does not wait for it.
	Beside bool
	// Path is what the operation is about.
	Path string
}

// Call is an operation that was abandoned and has not ended.
type Call struct {
	// Name is the step that it was last seen in.
	Name string
	// Path is what it is about.
	Path string
}

// slot is one operation that holds its key. Calls.mu guards its channels.
type slot struct {
	steps steps
	// ended is closed when the operation has returned; nil unless its caller has left.
	ended chan struct{}
	// free is closed when the operation has returned or its caller has left; nil unless somebody waits for that.
	free chan struct{}
}

// wake lets those go on who wait for the slot.
func (s *slot) wake() {
	if s.free != nil {
		close(s.free)
		s.free = nil
	}
}

// Calls runs operations, one at a time for each key, and counts those that were abandoned. Make it with [New]. Its
// methods may be called from several goroutines at once.
type Calls struct {
	options Options

	mu    sync.Mutex
	slots map[Key]*slot
	out   int // slots whose caller has left
}

// New returns Calls. It starts nothing.
func New(options Options) *Calls {
	if options.Max <= 0 {
		options.Max = DefaultMax
	}
	return &Calls{options: options, slots: map[Key]*slot{}}
}

// Value is [Calls.Do] for an operation with a result. The result of one that failed or was abandoned is the zero value.
func Value[T any](ctx context.Context, c *Calls, key Key, op func(context.Context) (T, error)) (T, error) {
	result := new(T)
	err := c.Do(ctx, key, func(ctx context.Context) (err error) {
		*result, err = op(ctx)
		return err
	})
	if err != nil {
		return *new(T), err // an abandoned operation may still write to result
	}
	return *result, nil
}

// Do runs op and waits for it or for ctx, whichever ends first. The context of op is ctx, and knows its steps. An
// operation that did not begin is an error that matches outcome.ErrTransient. Where nobody will leave, since ctx never ends, or
// where the caller is abandoned with op (see [Guarded]), op runs in the goroutine of the caller.
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

// doHere runs op in the goroutine of its caller, who is abandoned with it. Others learn that it is.
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

// deliver lets it happen to the caller.
func (e ending) deliver() error {
	if e.exited {
		runtime.Goexit()
	}
	if e.panicked != nil {
		panic(e.panicked)
	}
	return e.err
}

// run is the goroutine of an operation.
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

// acquire takes the slot of key. It waits while an operation holds it whose caller still waits.
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

// tryAcquire takes the slot of key, or returns what is closed when it may be free.
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

// abandon marks the operation as abandoned. It returns nil when the operation has just ended.
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

// Abandoned returns the operations that were abandoned and have not ended, in the order of their paths.
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
