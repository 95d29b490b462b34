package csiserver

import (
	"context"
	"log/slog"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// locks are the names and ids of volumes and snapshots that calls have for themselves.
type locks struct {
	logger *slog.Logger

	mu   sync.Mutex
	held map[string]struct{}
}

func nameLock(name string) string { return "name " + name }

func idLock(id string) string { return "id " + id }

func snapshotNameLock(name string) string { return "snapshot name " + name }

func snapshotIDLock(id string) string { return "snapshot id " + id }

func groupNameLock(name string) string { return "group name " + name }

func groupIDLock(id string) string { return "group id " + id }

// exclusively calls f with the lock held. It does not wait for one that is held: the error is ABORTED then. When f
// returns with a call of the plugin abandoned, the lock is held until that call has ended, by a goroutine that ends with it. f is not
// called when ctx has ended: its caller may have called again meanwhile, and this call would undo that.
func (l *locks) exclusively(ctx context.Context, lock string, f func() error) (err error) {
	if !l.take(lock) {
		return status.Errorf(codes.Aborted, "another call for what has %s is under way: try again when it has ended", volume.Quote(lock))
	}
	defer func() { l.release(lock, err) }() // after a panic too
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return f()
}

func (l *locks) take(lock string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.held[lock]; held {
		return false
	}
	if l.held == nil {
		l.held = map[string]struct{}{}
	}
	l.held[lock] = struct{}{}
	return true
}

func (l *locks) release(lock string, err error) {
	if done := outcome.DoneOf(err); done != nil {
		go func() {
			<-done
			l.drop(lock)
			l.logger.Info("an abandoned call has ended, and what it was about can be changed again", "lock", lock)
		}()
		return
	}
	l.drop(lock)
}

func (l *locks) drop(lock string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, lock)
}
