package limits

import "sync"

// Pending runs one function per name at a time: a map, a lock and a goroutine, without anything else that an operation
// has.
type Pending struct {
	mu    sync.Mutex
	names map[string]struct{}
	all   sync.WaitGroup
}

// NewPending returns one of which nothing runs.
func NewPending() *Pending { return &Pending{names: map[string]struct{}{}} }

// Run starts do, unless one of that name runs.
func (p *Pending) Run(name string, do func()) bool {
	p.mu.Lock()
	if _, taken := p.names[name]; taken {
		p.mu.Unlock()
		return false
	}
	p.names[name] = struct{}{}
	p.mu.Unlock()
	p.all.Go(func() {
		do()
		p.mu.Lock()
		delete(p.names, name)
		p.mu.Unlock()
	})
	return true
}

// IsPending reports whether one of that name runs.
func (p *Pending) IsPending(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, taken := p.names[name]
	return taken
}

// Wait waits for all.
func (p *Pending) Wait() { p.all.Wait() }
