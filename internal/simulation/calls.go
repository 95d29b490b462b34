package simulation

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Calls holds calls that wait until the simulation releases them. The zero value is ready to use.
type Calls struct {
	mu     sync.Mutex
	parked []*parked
}

type parked struct {
	call   Call
	answer chan string
}

// Call is a call that waits.
type Call struct {
	// Name is the name of the called function. Label begins with it.
	Name string
	// Label identifies the call among those that wait. If broken code makes the same call twice at a time, [Calls.Waiting] adds
	// a number to the labels of the later ones.
	Label string
	// Owner is the process that makes the call; see [Calls.Drop].
	Owner any
}

// Park waits until the call is released, and returns the verdict.
func (c *Calls) Park(call Call) (verdict string) {
	p := &parked{call: call, answer: make(chan string)}
	c.mu.Lock()
	c.parked = append(c.parked, p)
	c.mu.Unlock()
	return <-p.answer
}

// Waiting returns the calls that wait, sorted by label.
func (c *Calls) Waiting() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sort()
	calls := make([]Call, 0, len(c.parked))
	same := 0
	for i, p := range c.parked {
		call := p.call
		if same++; i == 0 || c.parked[i-1].call.Label != call.Label {
			same = 1
		}
		if same > 1 {
			call.Label += "~" + strconv.Itoa(same)
		}
		calls = append(calls, call)
	}
	return calls
}

// Release lets the call with a label continue with the verdict. It returns false if there is no such call.
func (c *Calls) Release(label, verdict string) bool {
	plain, number, twice := strings.Cut(label, "~")
	nth := 1
	if twice {
		nth, _ = strconv.Atoi(number) // An invalid number is zero, which no call has.
	}
	p := c.take(plain, nth)
	if p == nil {
		return false
	}
	p.answer <- verdict
	return true
}

func (c *Calls) take(label string, nth int) *parked {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sort()
	for i, p := range c.parked {
		if p.call.Label != label {
			continue
		}
		if nth--; nth == 0 {
			c.parked = slices.Delete(c.parked, i, i+1)
			return p
		}
	}
	return nil
}

// Drop lets all calls of an owner continue with the verdict.
func (c *Calls) Drop(owner any, verdict string) {
	c.mu.Lock()
	var dropped []*parked
	c.parked = slices.DeleteFunc(c.parked, func(p *parked) bool {
		if p.call.Owner == owner {
			dropped = append(dropped, p)
		}
		return p.call.Owner == owner
	})
	c.mu.Unlock()
	for _, p := range dropped {
		p.answer <- verdict
	}
}

// sort sorts the calls by label, and calls with the same label in the order in which they were made.
func (c *Calls) sort() {
	slices.SortStableFunc(c.parked, func(a, b *parked) int { return strings.Compare(a.call.Label, b.call.Label) })
}
