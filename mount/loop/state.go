package loop

import (
	"context"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// nodes opens the nodes of devices. It caches the device numbers of sysfs, which stay the same while the module is loaded. Its methods
// may be called from several goroutines at once.
type nodes struct {
	mu    sync.Mutex
	rdevs map[int]uint64 // st_rdev of the nodes, by the number of the device
}

// rdev returns the cached number of a device; 0 if there is none.
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

// inspector reads the state of devices.
type inspector struct {
	nodes *nodes
	calls *abandonable.Calls
}

// index maps files to the devices that have them. One goroutine at a time scans all devices.
type index struct {
	*rows

	inspector inspector
	scanning  chan struct{} // has a token during a scan
}

func newIndex(r *rows, inspector inspector) index {
	return index{rows: r, inspector: inspector, scanning: make(chan struct{}, 1)}
}

// beginScan waits until no other goroutine scans. It returns the function that ends the scan, or the error of ctx.
func (x index) beginScan(ctx context.Context) (end func(), err error) {
	select {
	case x.scanning <- struct{}{}:
		return func() { <-x.scanning }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// changes attaches and detaches devices, and records the results in the rows. Its methods may be called from several goroutines at once.
type changes struct {
	rows  *rows
	nodes *nodes
	// running has a token from before a change until its sequence number is known. So this process sees the numbers of its changes
	// in order. That only saves scans: nothing else depends on it.
	running chan struct{}

	mu      sync.Mutex
	pending int // a device that was detached here, and whose new sequence number is not known yet; or noDevice
}

// noDevice is the number of no device.
const noDevice = -1

func newChanges(r *rows, n *nodes) *changes {
	return &changes{rows: r, nodes: n, running: make(chan struct{}, 1), pending: noDevice}
}

// changeLimit is how long a change waits for another one. It takes microseconds; one that hangs must not hold up others.
const changeLimit = 250 * time.Millisecond

// begin waits until no other change runs, but at most changeLimit. It returns the function that ends this change.
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

// detached records that this process has ended the attachment seq of a device. The sequence number of its end is read later.
func (c *changes) detached(number int, seq uint64) {
	c.mu.Lock()
	c.pending = number
	c.mu.Unlock()
	c.rows.detached(number, seq)
}

// takePending returns the device that detached has recorded, and clears it.
func (c *changes) takePending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	number := c.pending
	c.pending = noDevice
	return number
}
