package ownership

import "sync"

// work is one call of Apply. It runs in a goroutine of its own, so that what it finds is under a lock.
type work struct {
	dir     string
	options Options
	rules   rules

	mu       sync.Mutex
	counters []*counter
	skips    func() (foreign, vanished int64) // of the walk; nil before it
	failures failures
	skipped  bool
	complete bool
	reason   Reason
}

func newWork(dir string, options Options) *work {
	if options.MaxFailures <= 0 {
		options.MaxFailures = defaultMaxFailures
	}
	return &work{
		dir: dir, options: options, rules: rulesOf(options),
		failures: failures{most: options.MaxFailures},
	}
}

// counter makes one for a worker.
func (w *work) counter() *counter {
	c := &counter{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counters = append(w.counters, c)
	return c
}

// fail keeps a failure.
func (w *work) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures.add(err)
}

func (w *work) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failures.err(w.dir)
}

func (w *work) decide(skipped bool, reason Reason) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skipped, w.reason = skipped, reason
}

func (w *work) counts() (sum Counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.counters {
		c.addTo(&sum)
	}
	if w.skips != nil {
		sum.Mounts, sum.Vanished = w.skips()
	}
	sum.Failed = w.failures.total
	return sum
}

func (w *work) report() Report {
	r := Report{Counts: w.counts()}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Skipped, r.Complete, r.Reason = w.skipped, w.complete, w.reason
	return r
}
