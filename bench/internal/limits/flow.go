package limits

import "sync"

// Flow attaches and mounts the volumes of pods, each in a goroutine of its own, and nothing else: the least that a manager of
// volumes can be that does not poll.
type Flow struct {
	pending *Pending
	mu      sync.Mutex
	pods    map[string]*flowPod
}

type flowPod struct {
	missing int
	mounted map[string]struct{}
	ready   chan struct{}
}

// NewFlow returns one without pods.
func NewFlow() *Flow { return &Flow{pending: NewPending(), pods: map[string]*flowPod{}} }

// AddPod makes a pod want volumes. The channel is closed when all of them are mounted.
func (f *Flow) AddPod(pod string, volumes []string, attach, mount func() error) <-chan struct{} {
	p := &flowPod{missing: len(volumes), mounted: make(map[string]struct{}, len(volumes)), ready: make(chan struct{})}
	f.mu.Lock()
	f.pods[pod] = p
	f.mu.Unlock()
	for _, v := range volumes {
		f.pending.Run(v, func() {
			if attach() == nil && mount() == nil {
				f.mounted(p, v)
			}
		})
	}
	return p.ready
}

func (f *Flow) mounted(p *flowPod, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.mounted[name] = struct{}{}
	if p.missing--; p.missing == 0 {
		close(p.ready)
	}
}
