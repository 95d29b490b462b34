package treewalk

import (
	"sync"
	"sync/atomic"
)

// task is something to be done for a directory, which has one ref for it: a name in it to be entered, or a part of its
// entries to be looked at.
type task struct {
	dir   *dir
	name  []byte // ended by a zero
	batch []byte // entries as the kernel writes them; a buffer of the pool
}

// pool shares tasks between workers. Each worker has tasks of its own, and gives the oldest half away when another worker waits.
// The pool starts a worker only when it has a task for it, so a small tree costs little.
type pool struct {
	workers     int
	idleWorkers atomic.Int32 // workers that wait for a task, or were not started
	stopped     atomic.Bool
	running     sync.WaitGroup // workers that were started

	mu        sync.Mutex
	wake      sync.Cond
	unstarted []*worker
	shared    []task
	buffers   [][]byte
	made      int // buffers
	done      bool
}

// newPool returns the pool of workers, the first of which runs already.
func newPool(workers []*worker) *pool {
	p := &pool{workers: len(workers), unstarted: workers[1:]}
	p.idleWorkers.Store(int32(len(p.unstarted)))
	p.wake.L = &p.mu
	return p
}

// stop makes every worker end before its next entry.
func (p *pool) stop() {
	p.stopped.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake.Broadcast()
}

// take waits for a task. It returns false when no task can come any more: all workers wait, or the walk was stopped.
func (p *pool) take() (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.done && !p.stopped.Load() {
		if n := len(p.shared); n > 0 {
			t := p.shared[n-1]
			p.shared[n-1] = task{}
			p.shared = p.shared[:n-1]
			return t, true
		}
		if int(p.idleWorkers.Add(1)) == p.workers {
			p.done = true
			p.wake.Broadcast()
			break
		}
		p.wake.Wait()
		p.idleWorkers.Add(-1)
	}
	return task{}, false
}

// give offers tasks to the waiting workers, and starts more workers if there are too few. A worker calls it.
func (p *pool) give(tasks ...task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shared = append(p.shared, tasks...)
	waiting := int(p.idleWorkers.Load()) - len(p.unstarted)
	for range tasks[:min(len(tasks), waiting)] {
		p.wake.Signal()
	}
	for n := len(p.shared) - waiting; n > 0 && len(p.unstarted) > 0; n-- {
		p.start()
	}
}

// start starts a worker. The caller holds the lock.
func (p *pool) start() {
	last := len(p.unstarted) - 1
	w := p.unstarted[last]
	p.unstarted = p.unstarted[:last]
	p.idleWorkers.Add(-1)
	p.running.Go(w.run)
}

// buffer returns an unused buffer. It returns nil if there are as many buffers as workers and all are in use.
func (p *pool) buffer() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.buffers)
	switch {
	case n > 0:
		b := p.buffers[n-1]
		p.buffers = p.buffers[:n-1]
		return b
	case p.made < p.workers:
		p.made++
		return make([]byte, bufferSize)
	}
	return nil
}

func (p *pool) putBuffer(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buffers = append(p.buffers, b[:cap(b)])
}
