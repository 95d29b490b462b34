package dockerserver

import (
	"context"
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// locks holds the locks of volumes' names. The zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // has an element while the lock is free
	users int           // calls that hold it or wait for it
}

// exclusively calls f with the lock of name. It waits for the lock until ctx ends. If f returns with an abandoned call
// of the plugin, a goroutine keeps the lock until that call has ended.
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
	one.free <- struct{}{} // never blocks: its capacity is one, and the lock was held
	l.leave(name, one)
}
