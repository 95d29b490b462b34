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

// pool shares tasks between workers. Each worker has tasks of its own and gives the oldest half away when another one
// waits for some. A worker is started when there is something to give to it, so that a small tree costs little.
type pool struct {
	workers int
	hungry  atomic.Int32 // workers that wait, or are not started
	stopped atomic.Bool
	running sync.WaitGroup // those that were started

	mu      sync.Mutex
	wake    sync.Cond
	idle    []*worker // those that are not started
	shared  []task
	buffers [][]byte
	made    int // buffers
	done    bool
}

// newPool returns the pool of workers, the first of which runs already.
func newPool(workers []*worker) *pool {
	p := &pool{workers: len(workers), idle: workers[1:]}
	p.hungry.Store(int32(len(p.idle)))
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

// take waits for a task. It returns false when there will be none any more: all workers wait, or the walk is stopped.
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
		if int(p.hungry.Add(1)) == p.workers {
			p.done = true
			p.wake.Broadcast()
			break
		}
		p.wake.Wait()
		p.hungry.Add(-1)
	}
	return task{}, false
}

// give offers tasks to those who wait, and starts others where they do not suffice. It is called by a worker.
func (p *pool) give(tasks ...task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shared = append(p.shared, tasks...)
	waiting := int(p.hungry.Load()) - len(p.idle)
	for range tasks[:min(len(tasks), waiting)] {
		p.wake.Signal()
	}
	for n := len(p.shared) - waiting; n > 0 && len(p.idle) > 0; n-- {
		p.start()
	}
}

// start starts a worker. p is locked.
func (p *pool) start() {
	last := len(p.idle) - 1
	w := p.idle[last]
	p.idle = p.idle[:last]
	p.hungry.Add(-1)
	p.running.Go(w.run)
}

// buffer returns an unused buffer, or nil when there are as many as workers and all are in use.
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
