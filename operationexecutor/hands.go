package operationexecutor

import (
	"context"
	"sync"
)

// This file has the goroutines that do operations. One does an operation after the other as long as some wait, so that of many
// that end at once few goroutines are made, and their stacks have grown already. No operation waits for another one: as long as
// some wait, there is a goroutine that has nothing else to do than to take the next, and that has the one after it made
// before it begins.

// hands are such goroutines. The zero value is ready.
type hands struct {
	mu sync.Mutex
	// waiting are the operations that nobody has begun, from the one at next on.
	waiting []job
	next    int
	// spare is how many goroutines were made and have not taken their first operation. While operations wait there is one.
	spare int
}

// job is an operation that is to be done.
type job struct {
	ctx context.Context //nolint:containedctx // It is on its way to the goroutine.
	op  *Operation
}

// do has the operation done by some goroutine.
func (h *hands) do(j job) {
	h.mu.Lock()
	h.waiting = append(h.waiting, j)
	h.unlockWithSpare()
}

// unlockWithSpare unlocks, and makes a goroutine when operations wait and none is on its way.
func (h *hands) unlockWithSpare() {
	needed := h.next < len(h.waiting) && h.spare == 0
	if needed {
		h.spare++
	}
	h.mu.Unlock()
	if needed {
		go h.work()
	}
}

// work is a goroutine that does operations until none waits, or until one ends it.
func (h *hands) work() {
	defer func() { // Also when a call of a plugin ends the goroutine.
		h.mu.Lock()
		h.unlockWithSpare()
	}()
	h.mu.Lock()
	h.spare--
	for {
		j, ok := h.take()
		h.unlockWithSpare()
		if !ok {
			return
		}
		j.do()
		h.mu.Lock()
	}
}

// take takes the next operation. The lock must be held.
func (h *hands) take() (j job, ok bool) {
	if h.next == len(h.waiting) {
		return job{}, false
	}
	j, h.waiting[h.next] = h.waiting[h.next], job{}
	if h.next++; h.next == len(h.waiting) {
		h.reset()
	}
	return j, true
}

// manyJobs is how many operations may have waited without the memory for them being given back.
const manyJobs = 128

func (h *hands) reset() {
	h.waiting, h.next = h.waiting[:0], 0
	if cap(h.waiting) > manyJobs {
		h.waiting = nil
	}
}

func (j job) do() {
	if j.op.alone != nil {
		j.op.executeAlone()
	} else {
		j.op.execute(j.ctx)
	}
}
