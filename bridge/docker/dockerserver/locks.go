package dockerserver

import (
	"context"
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// locks are the names of volumes that calls have for themselves. The zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // has an element while nobody has the lock
	users int           // who have it or wait for it
}

// exclusively calls f while no other call has the name, and waits for that until ctx ends. If f returns with a call of the plugin
// abandoned, the name is taken until that call has ended, by a goroutine that ends with it.
func (l *locks) exclusively(ctx context.Context, name string, f func() error) (err error) {
	one := l.join(name)
	select {
	case <-one.free:
	case <-ctx.Done():
		l.leave(name, one)
		return fmt.Errorf("volume %s: another call for it is under way: %w", volume.Quote(name), volume.Transient(context.Cause(ctx)))
	}
	defer func() { l.release(name, one, outcome.DoneOf(err)) }() // after a panic too
	return f()
}

func (l *locks) join(name string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, ok := l.held[name]
	if !ok {
		one = &lock{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		if l.held == nil {
			l.held = map[string]*lock{}
		}
		l.held[name] = one
	}
	one.users++
	return one
}

func (l *locks) leave(name string, one *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one.users--
	if one.users == 0 {
		delete(l.held, name)
	}
}

func (l *locks) release(name string, one *lock, after <-chan struct{}) {
	if after != nil {
		go func() {
			<-after
			l.release(name, one, nil)
		}()
		return
	}
	one.free <- struct{}{} // never waits: it has room for one, and we had it
	l.leave(name, one)
}
