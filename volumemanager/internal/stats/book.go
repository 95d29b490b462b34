package stats

import (
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

const (
	// Patience is how long a caller waits for a measurement.
	Patience = time.Second
	// WorkerPatience is how long a worker waits for one before it begins the next beside it, so that those that answer do not
	// wait behind those that hang. When maxSlow run like that, it waits as long as a caller.
	WorkerPatience = 10 * time.Millisecond
)

// Reading is what is known of the measurements of one volume.
type Reading struct {
	// Metrics are those of the last success; nil when there was none.
	Metrics *volume.Metrics
	// Err is that of the last attempt.
	Err error
	// Since is when the measurement that runs began; zero when none does.
	Since time.Time

	at     time.Time // when the last attempt ended; zero when there was none
	queued bool
	how    manner // of the one that is queued or runs
	gone   bool   // the set-up that is measured is gone: what comes of it is nobody's
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

// book holds what was measured of those volumes that somebody has asked for.
type book struct {
	queue *workqueue.Queue[podvolume.Key]

	mu   sync.Mutex
	rows map[podvolume.Key]Reading
	// left are the measurements that run and that no worker waits for any more.
	left map[podvolume.Key]struct{}
}

func newBook() *book {
	return &book{queue: workqueue.New[podvolume.Key](), rows: make(map[podvolume.Key]Reading), left: make(map[podvolume.Key]struct{})}
}

// ask returns what is known of a volume, and queues it when that is older than maxAge. As long as a measurement of an earlier
// set-up runs nothing is known, and none begins beside it.
func (b *book) ask(h podvolume.Key, maxAge time.Duration, state operationexecutor.VolumeMountState) Reading {
	b.mu.Lock()
	f := b.rows[h]
	if f.gone {
		b.mu.Unlock()
		return Reading{}
	}
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
func (b *book) probe(h podvolume.Key) {
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
func (f *Reading) isIdle() bool {
	return (!f.queued || f.how != metered) && f.Since.IsZero() && len(outcome.Running(f.Err)) == 0
}

// drop forgets a volume of a pod that was torn down. What still measures it ends for nobody.
func (b *book) drop(h podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.rows[h]
	switch {
	case !ok:
	case f.Since.IsZero():
		delete(b.rows, h)
	default:
		b.rows[h] = Reading{Since: f.Since, gone: true}
	}
}

// keep forgets all volumes but those that are known, and those that are being measured.
func (b *book) keep(known map[podvolume.Key]struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for h, f := range b.rows {
		if _, ok := known[h]; !ok && f.Since.IsZero() {
			delete(b.rows, h)
		}
	}
}

// begin says that a volume is being measured, unless it is already.
func (b *book) begin(h podvolume.Key) (how manner, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.rows[h]
	if !f.queued || !f.Since.IsZero() {
		return refused, false
	}
	f.queued, f.Since = false, time.Now()
	b.rows[h] = f
	if b.slow() >= maxSlow {
		return refused, true
	}
	return f.how, true
}

// slow returns how many measurements have run longer than Patience. The lock is held.
func (b *book) slow() (n int) {
	for h := range b.left {
		if time.Since(b.rows[h].Since) >= Patience {
			n++
		}
	}
	return n
}

// patience returns how long a worker waits for a measurement before it begins another one beside it.
func (b *book) patience() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.left) >= maxSlow {
		return Patience
	}
	return WorkerPatience
}

// end says how a measurement has ended. A probe that went well says nothing of the metrics.
func (b *book) end(h podvolume.Key, got measurement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.left, h)
	f := b.rows[h]
	if f.gone {
		delete(b.rows, h)
		return
	}
	f.Since = time.Time{}
	if f.how != probed || got.err != nil {
		f.Err, f.at = got.err, time.Now()
	}
	if got.metrics != nil {
		f.Metrics = got.metrics
	}
	b.rows[h] = f
}

// leave says that no worker waits for the measurement that runs.
func (b *book) leave(h podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.rows[h].Since.IsZero() {
		b.left[h] = struct{}{}
	}
}

// nextPatience returns when the next of the measurements that are waited for is given up, and whether there are any.
func (b *book) nextPatience() (next time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	next = now.Add(Patience)
	for _, f := range b.rows {
		end := f.Since.Add(Patience)
		switch {
		case f.gone:
		case f.queued:
			waits = true
		case f.Since.IsZero() || !now.Before(end):
		default:
			waits = true
			if end.Before(next) {
				next = end
			}
		}
	}
	return next, waits
}
