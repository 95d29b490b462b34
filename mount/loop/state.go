package loop

import (
	"context"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// nodes opens the nodes of devices. The number that sysfs shows of a device stays the same for as long as the module is loaded. Its
// methods may be called from several goroutines at once.
type nodes struct {
	mu    sync.Mutex
	rdevs map[int]uint64 // st_rdev of the nodes, by the number of the device
}

// rdev returns what was kept of a device; 0 for nothing.
func (n *nodes) rdev(number int) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rdevs[number]
}

func (n *nodes) keepRdev(number int, rdev uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rdevs[number] = rdev
}

// inspector asks devices what they have.
type inspector struct {
	nodes *nodes
	calls *abandonable.Calls
}

// index knows which device has which file. One goroutine at a time looks at all devices.
type index struct {
	*rows

	inspector inspector
	scanning  chan struct{} // has a token while one does
}

func newIndex(r *rows, inspector inspector) index {
	return index{rows: r, inspector: inspector, scanning: make(chan struct{}, 1)}
}

// beginScan waits until no other goroutine looks at all devices, and returns what ends the scan, or the error of ctx.
func (x index) beginScan(ctx context.Context) (end func(), err error) {
	select {
	case x.scanning <- struct{}{}:
		return func() { <-x.scanning }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// changes attaches and detaches, and keeps what comes of it in the rows. Its methods may be called from several goroutines at once.
type changes struct {
	rows  *rows
	nodes *nodes
	// running has a token from before a change until its number is known, so that the numbers of changes that are made here are seen
	// in their order. It saves looks at all devices, and nothing else depends on it.
	running chan struct{}

	mu      sync.Mutex
	pending int // a device that was detached here, and whose number since then is not known; or noDevice
}

// noDevice stands for the number of no device.
const noDevice = -1

func newChanges(r *rows, n *nodes) *changes {
	return &changes{rows: r, nodes: n, running: make(chan struct{}, 1), pending: noDevice}
}

// changeLimit is how long a change waits for another one. It takes microseconds; one that hangs must not hold up others.
const changeLimit = 250 * time.Millisecond

// begin waits, but not for long, until no other change runs, and returns what ends this one.
func (c *changes) begin(ctx context.Context) (end func()) {
	end = func() { <-c.running }
	select {
	case c.running <- struct{}{}:
		return end
	default:
	}
	timer := time.NewTimer(changeLimit)
	defer timer.Stop()
	select {
	case c.running <- struct{}{}:
		return end
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// detached keeps that the attachment of a device with number seq has ended here. The number of its end is found out later.
func (c *changes) detached(number int, seq uint64) {
	c.mu.Lock()
	c.pending = number
	c.mu.Unlock()
	c.rows.detached(number, seq)
}

// takePending returns the device that detached has kept, once.
func (c *changes) takePending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	number := c.pending
	c.pending = noDevice
	return number
}
