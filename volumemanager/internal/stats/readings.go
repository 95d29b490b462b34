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
	// CallerWait is how long a caller waits for a measurement.
	CallerWait = time.Second
	// WorkerWait is how long a worker waits for a measurement before it begins the next one beside it. Volumes that
	// answer therefore do not wait behind volumes that hang. When maxSlow such measurements run, the worker waits as long as
	// a caller.
	WorkerWait = 10 * time.Millisecond
)

// Reading is the state and the last result of one volume's measurements.
type Reading struct {
	// Metrics are the result of the last success; nil if there was none.
	Metrics *volume.Metrics
	// Err is the error of the last attempt.
	Err error
	// Since is when the running measurement began; zero if none runs.
	Since time.Time

	at     time.Time // when the last attempt ended; zero if there was none
	queued bool
	kind   measurementKind // of the measurement that is queued or runs
	gone   bool            // the measured set-up is gone: the result is dropped
}

// measurementKind is how a volume is measured.
type measurementKind uint8

const (
	probed  measurementKind = iota // only a check that its filesystem answers
	metered                        // the plugin measures it
	refused                        // not at all, because too many measurements hang
)

// measurement is the result of one measurement.
type measurement struct {
	metrics *volume.Metrics
	err     error
}

// readings holds the measurements of the volumes that callers read.
type readings struct {
	queue *workqueue.Queue[podvolume.Key]

	mu   sync.Mutex
	rows map[podvolume.Key]Reading
	// left holds the running measurements for which no worker waits any more.
	left map[podvolume.Key]struct{}
}

func newReadings() *readings {
	return &readings{queue: workqueue.New[podvolume.Key](), rows: make(map[podvolume.Key]Reading), left: make(map[podvolume.Key]struct{})}
}

// read returns the last result for a volume, and queues a measurement if the result is older than maxAge. While a measurement
// of an earlier set-up still runs, it returns nothing and queues nothing.
func (r *readings) read(h podvolume.Key, maxAge time.Duration, state operationexecutor.VolumeMountState) Reading {
	r.mu.Lock()
	f := r.rows[h]
	if f.gone {
		r.mu.Unlock()
		return Reading{}
	}
	due := canMeasure(state) && f.isIdle() && (f.at.IsZero() || time.Since(f.at) >= maxAge)
	if due {
		f.queued, f.kind = true, metered
		r.rows[h] = f
	}
	r.mu.Unlock()
	if due {
		r.queue.Add(h)
	}
	return f
}

// probe queues a check of whether the volume's filesystem answers, unless a measurement runs.
func (r *readings) probe(h podvolume.Key) {
	r.mu.Lock()
	f := r.rows[h]
	due := f.isIdle() && !f.queued
	if due {
		f.queued, f.kind = true, probed
		r.rows[h] = f
	}
	r.mu.Unlock()
	if due {
		r.queue.Add(h)
	}
}

// isIdle reports whether no measurement of the volume is queued or runs, and no earlier one hangs. A queued probe does not
// count.
func (f *Reading) isIdle() bool {
	return (!f.queued || f.kind != metered) && f.Since.IsZero() && len(outcome.Running(f.Err)) == 0
}

// drop forgets a pod's volume that was torn down. The result of a measurement that still runs will be dropped.
func (r *readings) drop(h podvolume.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.rows[h]
	switch {
	case !ok:
	case f.Since.IsZero():
		delete(r.rows, h)
	default:
		r.rows[h] = Reading{Since: f.Since, gone: true}
	}
}

// keep forgets all volumes except the known ones and those that are being measured.
func (r *readings) keep(known map[podvolume.Key]struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h, f := range r.rows {
		if _, ok := known[h]; !ok && f.Since.IsZero() {
			delete(r.rows, h)
		}
	}
}

// begin notes that a measurement of a volume begins, and returns how it is done. ok is false if none is queued, or one runs
// already.
func (r *readings) begin(h podvolume.Key) (kind measurementKind, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.rows[h]
	if !f.queued || !f.Since.IsZero() {
		return refused, false
	}
	f.queued, f.Since = false, time.Now()
	r.rows[h] = f
	if r.slow() >= maxSlow {
		return refused, true
	}
	return f.kind, true
}

// slow returns how many measurements have run longer than CallerWait. The caller holds the lock.
func (r *readings) slow() (n int) {
	for h := range r.left {
		if time.Since(r.rows[h].Since) >= CallerWait {
			n++
		}
	}
	return n
}

// workerWait returns how long a worker waits for a measurement before it begins another one beside it.
func (r *readings) workerWait() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.left) >= maxSlow {
		return CallerWait
	}
	return WorkerWait
}

// end notes the result of a measurement. A successful probe does not change the last metrics, their error or their time.
func (r *readings) end(h podvolume.Key, got measurement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.left, h)
	f := r.rows[h]
	if f.gone {
		delete(r.rows, h)
		return
	}
	f.Since = time.Time{}
	if f.kind != probed || got.err != nil {
		f.Err, f.at = got.err, time.Now()
	}
	if got.metrics != nil {
		f.Metrics = got.metrics
	}
	r.rows[h] = f
}

// leave notes that no worker waits for the running measurement any more.
func (r *readings) leave(h podvolume.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.rows[h].Since.IsZero() {
		r.left[h] = struct{}{}
	}
}

// nextWaitEnd returns when callers have to stop waiting for the next of the measurements that run or are queued. waits is
// false if there are none.
func (r *readings) nextWaitEnd() (next time.Time, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	next = now.Add(CallerWait)
	for _, f := range r.rows {
		end := f.Since.Add(CallerWait)
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
