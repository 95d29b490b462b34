package volumemanager

import (
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// statsPatience is how long a measurement is waited for, by who asks and by who measures.
const statsPatience = time.Second

// figures are what is known of the measurements of one volume.
type figures struct {
	metrics *volume.Metrics // the last success; nil when there was none
	err     error           // of the last attempt
	at      time.Time       // when the last attempt ended; zero when there was none
	since   time.Time       // when the one that runs began; zero when none does
	queued  bool
	how     manner // of the one that is queued or runs
	slow    bool   // the one that runs is waited for no more
}

// manner is how a volume is measured.
type manner uint8

const (
	probed  manner = iota // it is only seen whether its filesystem answers
	metered               // the plugin measures it
	refused               // it is not, since too many measurements hang
)

// measurement is what one has led to.
type measurement struct {
	metrics *volume.Metrics
	err     error
}

// figureBook holds the figures of those volumes that somebody has asked for.
type figureBook struct {
	queue *workqueue.Queue[holder]

	mu   sync.Mutex
	rows map[holder]figures
	slow int // measurements that have run longer than statsPatience
}

func newFigureBook() *figureBook {
	return &figureBook{queue: workqueue.New[holder](), rows: make(map[holder]figures)}
}

// ask returns what is known of a volume, and queues it when that is older than maxAge.
func (b *figureBook) ask(h holder, maxAge time.Duration, state operationexecutor.VolumeMountState) figures {
	b.mu.Lock()
	f := b.rows[h]
	due := canMeasure(state) && f.isIdle() && (f.at.IsZero() || time.Since(f.at) >= maxAge)
	if due {
		f.queued, f.how = true, metered
		b.rows[h] = f
	}
	b.mu.Unlock()
	if due {
		b.queue.Add(h)
	}
	return f
}

// probe queues a volume to see whether its filesystem answers, unless it is being measured.
func (b *figureBook) probe(h holder) {
	b.mu.Lock()
	f := b.rows[h]
	due := f.isIdle() && !f.queued
	if due {
		f.queued, f.how = true, probed
		b.rows[h] = f
	}
	b.mu.Unlock()
	if due {
		b.queue.Add(h)
	}
}

// isIdle reports whether nobody measures the volume, or is about to, and no earlier measurement hangs.
func (f *figures) isIdle() bool {
	return (!f.queued || f.how != metered) && f.since.IsZero() && len(outcome.Running(f.err)) == 0
}

// keep forgets all volumes but those that are known, and those that are being measured.
func (b *figureBook) keep(known map[holder]struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for h, f := range b.rows {
		if _, ok := known[h]; !ok && f.since.IsZero() {
			delete(b.rows, h)
		}
	}
}

// begin says that a volume is being measured, unless it is already.
func (b *figureBook) begin(h holder) (how manner, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.rows[h]
	if !f.queued || !f.since.IsZero() {
		return refused, false
	}
	f.queued, f.since = false, time.Now()
	b.rows[h] = f
	if b.slow >= maxSlow {
		return refused, true
	}
	return f.how, true
}

// end says how a measurement has ended. A probe that went well says nothing of the figures.
func (b *figureBook) end(h holder, got measurement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.rows[h]
	if f.slow {
		f.slow = false
		b.slow--
	}
	f.since = time.Time{}
	if f.how != probed || got.err != nil {
		f.err, f.at = got.err, time.Now()
	}
	if got.metrics != nil {
		f.metrics = got.metrics
	}
	b.rows[h] = f
}

// leave says that the measurement that runs is waited for no more.
func (b *figureBook) leave(h holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.rows[h]; !f.since.IsZero() {
		f.slow = true
		b.slow++
		b.rows[h] = f
	}
}

// nextPatience returns when the next of the measurements that are waited for is given up, and whether there are any.
func (b *figureBook) nextPatience() (next time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	next = now.Add(statsPatience)
	for _, f := range b.rows {
		end := f.since.Add(statsPatience)
		switch {
		case f.queued:
			waits = true
		case f.since.IsZero() || !now.Before(end):
		default:
			waits = true
			if end.Before(next) {
				next = end
			}
		}
	}
	return next, waits
}
