package attachdetach

import (
	"context"
	"sync"
	"time"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/workqueue"
)

// leftovers are records that may be there though nothing is attached: what was detached and could not be taken off the record, and
// what was not begun since nobody knows whether the record was made. As long as a record is there nobody deletes the volume.
// Methods may be called from several goroutines at once.
type leftovers struct {
	queue *workqueue.Queue[attachment]

	mu sync.Mutex // held over nothing that waits
	// marks has a channel for each, which is nil while nobody removes the record, and is closed when that is over.
	marks map[attachment]chan struct{}
}

func newLeftovers() leftovers {
	return leftovers{queue: workqueue.New[attachment](), marks: map[attachment]chan struct{}{}}
}

// leave notes that a record is to be removed.
func (l *leftovers) leave(a attachment) {
	l.mu.Lock()
	l.marks[a] = nil
	l.mu.Unlock()
	l.queue.Add(a)
}

// wanted says that a record is to be there from now on, and waits until nobody removes it any more.
func (l *leftovers) wanted(ctx context.Context, a attachment) error {
	l.mu.Lock()
	removing := l.marks[a]
	delete(l.marks, a)
	l.mu.Unlock()
	if removing == nil {
		return nil
	}
	select {
	case <-removing:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin reports whether a record is to be removed still. Until end is called nobody else has it.
func (l *leftovers) begin(a attachment) (end func(removed bool), left bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, left = l.marks[a]; !left {
		return nil, false
	}
	over := make(chan struct{})
	l.marks[a] = over
	return func(removed bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(over)
		if l.marks[a] != over {
			return // It is wanted, or was left once more.
		}
		l.marks[a] = nil
		if removed {
			delete(l.marks, a)
		}
	}, true
}

// removeLeftovers removes records that were left until ctx ends.
func (c *Controller) removeLeftovers(ctx context.Context) {
	failures := map[attachment]int{}
	for {
		a, ok := c.records.queue.Get(ctx)
		if !ok {
			return
		}
		err := c.removeLeftover(ctx, a)
		if err == nil {
			delete(failures, a)
			continue
		}
		failures[a]++
		c.options.Logger.Warn("the record of an attachment that is gone could not be removed", "volume", a.volume, "node", a.node, "err", err)
		c.records.queue.AddAt(a, time.Now().Add(c.options.delay(failures[a])))
	}
}

// removeLeftover removes one record, unless the volume is, or may be, attached. An operation that goes on then says at its end what
// becomes of the record.
func (c *Controller) removeLeftover(ctx context.Context, a attachment) error {
	end, left := c.records.begin(a)
	if !left {
		return nil
	}
	switch c.actual.AttachState(a.volume, a.node) {
	case cache.Attaching, cache.Detaching:
		end(false)
		return cache.ErrAttaching
	case cache.Attached, cache.AttachUncertain:
		end(true)
		return nil
	case cache.NotAttached:
	}
	err := c.records.forget(ctx, a)
	end(err == nil)
	return err
}
