package volumemanager

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
	// statsPatience is how long a measurement is waited for by who asks.
	statsPatience = time.Second
	// workerPatience is how long a worker waits for one before it begins the next beside it, so that those that answer do not
	// wait behind those that hang. When maxSlow run like that, it waits as long as who asks.
	workerPatience = 10 * time.Millisecond
)

// figures are what is known of the measurements of one volume.
type figures struct {
	metrics *volume.Metrics // the last success; nil when there was none
	err     error           // of the last attempt
	at      time.Time       // when the last attempt ended; zero when there was none
	since   time.Time       // when the one that runs began; zero when none does
	queued  bool
	how     manner // of the one that is queued or runs
	gone    bool   // the set-up that is measured is gone: what comes of it is nobody's
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
	queue *workqueue.Queue[podvolume.Key]

	mu   sync.Mutex
	rows map[podvolume.Key]figures
	// left are the measurements that run and that no worker waits for any more.
	left map[podvolume.Key]struct{}
}

func newFigureBook() *figureBook {
	return &figureBook{queue: workqueue.New[podvolume.Key](), rows: make(map[podvolume.Key]figures), left: make(map[podvolume.Key]struct{})}
}

// ask returns what is known of a volume, and queues it when that is older than maxAge. As long as a measurement of an earlier
// set-up runs nothing is known, and none begins beside it.
func (b *figureBook) ask(h podvolume.Key, maxAge time.Duration, state operationexecutor.VolumeMountState) figures {
	b.mu.Lock()
	f := b.rows[h]
	if f.gone {
		b.mu.Unlock()
		return figures{}
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
func (b *figureBook) probe(h podvolume.Key) {
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

// drop forgets a volume of a pod that was torn down. What still measures it ends for nobody.
func (b *figureBook) drop(h podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.rows[h]
	switch {
	case !ok:
	case f.since.IsZero():
		delete(b.rows, h)
	default:
		b.rows[h] = figures{since: f.since, gone: true}
	}
}

// keep forgets all volumes but those that are known, and those that are being measured.
func (b *figureBook) keep(known map[podvolume.Key]struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for h, f := range b.rows {
		if _, ok := known[h]; !ok && f.since.IsZero() {
			delete(b.rows, h)
		}
	}
}

// begin says that a volume is being measured, unless it is already.
func (b *figureBook) begin(h podvolume.Key) (how manner, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.rows[h]
	if !f.queued || !f.since.IsZero() {
		return refused, false
	}
	f.queued, f.since = false, time.Now()
	b.rows[h] = f
	if b.slow() >= maxSlow {
		return refused, true
	}
	return f.how, true
}

// slow returns how many measurements have run longer than statsPatience. The lock is held.
func (b *figureBook) slow() (n int) {
	for h := range b.left {
		if time.Since(b.rows[h].since) >= statsPatience {
			n++
		}
	}
	return n
}

// patience returns how long a worker waits for a measurement before it begins another one beside it.
func (b *figureBook) patience() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.left) >= maxSlow {
		return statsPatience
	}
	return workerPatience
}

// end says how a measurement has ended. A probe that went well says nothing of the figures.
func (b *figureBook) end(h podvolume.Key, got measurement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.left, h)
	f := b.rows[h]
	if f.gone {
		delete(b.rows, h)
		return
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

// leave says that no worker waits for the measurement that runs.
func (b *figureBook) leave(h podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.rows[h].since.IsZero() {
		b.left[h] = struct{}{}
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
		case f.gone:
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
