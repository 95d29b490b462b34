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
// waits for some.
type pool struct {
	workers int
	hungry  atomic.Int32 // workers that wait
	stopped atomic.Bool

	mu      sync.Mutex
	wake    sync.Cond
	shared  []task
	buffers [][]byte
	done    bool
}

func newPool(workers int) *pool {
	p := &pool{workers: workers}
	p.wake.L = &p.mu
	for range workers {
		p.buffers = append(p.buffers, make([]byte, bufferSize))
	}
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

// give offers tasks to those who wait.
func (p *pool) give(tasks ...task) {
	p.mu.Lock()
	p.shared = append(p.shared, tasks...)
	p.mu.Unlock()
	if len(tasks) == 1 {
		p.wake.Signal()
	} else {
		p.wake.Broadcast()
	}
}

// buffer returns an unused buffer, or nil when all are in use.
func (p *pool) buffer() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.buffers)
	if n == 0 {
		return nil
	}
	b := p.buffers[n-1]
	p.buffers = p.buffers[:n-1]
	return b
}

func (p *pool) putBuffer(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buffers = append(p.buffers, b[:cap(b)])
}
