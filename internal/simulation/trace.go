package simulation

import (
	"hash/fnv"
	"slices"
	"sync"
)

// Trace is what happened, step by step. What is noted between two steps is sorted, since goroutines note it in any
// order. The zero value keeps the hash alone.
type Trace struct {
	// Keep says that the lines themselves are kept too.
	Keep bool

	mu    sync.Mutex
	notes []string
	lines []string
	hash  uint64
}

// Note adds a line to the step that is going on.
func (t *Trace) Note(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes = append(t.notes, line)
}

// Step begins the next step and ends the one before.
func (t *Trace) Step(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	t.add(line)
}

// Hash returns a number that is the same for the same trace.
func (t *Trace) Hash() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	return t.hash
}

// Lines returns the lines, if they were kept; those of a step are indented below it.
func (t *Trace) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	return slices.Clone(t.lines)
}

func (t *Trace) flush() {
	slices.Sort(t.notes)
	for _, note := range t.notes {
		t.add("    " + note)
	}
	t.notes = t.notes[:0]
}

func (t *Trace) add(line string) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(line)) // It never fails.
	t.hash = t.hash*1099511628211 ^ h.Sum64()
	if t.Keep {
		t.lines = append(t.lines, line)
	}
}
