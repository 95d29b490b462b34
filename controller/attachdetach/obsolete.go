package attachdetach

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/internal/workqueue"
)

// obsoleteRecords are VolumeAttachments that may exist although nothing is attached. Either the volume was detached and its record could
// not be removed, or the volume was not attached because it is not known whether the record was made. While a record
// exists, the volume is not deleted. Methods may be called from several goroutines at once.
type obsoleteRecords struct {
	queue *workqueue.Queue[attachment]

	mu sync.Mutex // no call that waits is made under it
	// marks has an entry for each obsolete record. Its channel is nil until the removal of the record begins, and closes at the
	// end of the removal.
	marks map[attachment]chan struct{}
}

func newObsoleteRecords() obsoleteRecords {
	return obsoleteRecords{queue: workqueue.New[attachment](), marks: map[attachment]chan struct{}{}}
}

// markObsolete marks a record as obsolete and queues its removal.
func (l *obsoleteRecords) markObsolete(a attachment) {
	l.mu.Lock()
	l.marks[a] = nil
	l.mu.Unlock()
	l.queue.Add(a)
}

// keep removes the mark of a record that is needed again. It waits for the end of a removal that has begun.
func (l *obsoleteRecords) keep(ctx context.Context, a attachment) error {
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

// beginRemoval begins the removal of a record. It returns false if the record is not obsolete any more. The caller must call end.
func (l *obsoleteRecords) beginRemoval(a attachment) (end func(removed bool), left bool) {
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
			return // It is needed, or was marked again.
		}
		l.marks[a] = nil
		if removed {
			delete(l.marks, a)
		}
	}, true
}

// recordRemover removes obsolete records.
type recordRemover struct {
	records *attachmentRecords
	actual  *cluster.ActualStateOfWorld
	logger  *slog.Logger
	delay   func(failures int) time.Duration
}

// run removes obsolete records until ctx ends.
func (r *recordRemover) run(ctx context.Context) {
	failures := map[attachment]int{}
	for {
		a, ok := r.records.queue.Get(ctx)
		if !ok {
			return
		}
		err := r.remove(ctx, a)
		if err == nil {
			delete(failures, a)
			continue
		}
		failures[a]++
		r.logger.Warn("the record of an attachment that is gone could not be removed", "volume", a.volume, "node", a.node, "error", err)
		r.records.queue.AddAt(a, time.Now().Add(r.delay(failures[a])))
	}
}

// remove removes one record, unless the volume is, or may be, attached. While an operation runs, it returns an error and is
// tried again: the end of the operation decides about the record.
func (r *recordRemover) remove(ctx context.Context, a attachment) error {
	end, left := r.records.beginRemoval(a)
	if !left {
		return nil
	}
	switch r.actual.AttachState(a.volume, a.node) {
	case cluster.Attaching, cluster.Detaching:
		end(false)
		return cluster.ErrAttaching
	case cluster.Attached, cluster.AttachUncertain:
		end(true)
		return nil
	case cluster.NotAttached:
	}
	err := r.records.forget(ctx, a)
	end(err == nil)
	return err
}
