package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// nodeManager is a whole volume manager that runs.
type nodeManager interface {
	add(ps ...*v1.Pod)
	// wait is what a pod waits for its volumes, after it was added.
	wait(p *v1.Pod) error
	// fill adds pods and returns when all of them have their volumes.
	fill(ps []*v1.Pod)
	stop()
}

// managers makes each implementation of nodeManager. The least is a goroutine for each volume and a channel for each pod.
var managers = []struct {
	impl string
	make func(tb testing.TB) nodeManager
}{
	{"k8s", func(tb testing.TB) nodeManager { return newK8sManager(tb) }},
	{"ours", func(tb testing.TB) nodeManager {
		return newOurManager(tb, &instantOurs{}, volumemanager.Options{})
	}},
	{"limit", func(testing.TB) nodeManager {
		return &bareManager{flow: limits.NewFlow(), ready: map[*v1.Pod]<-chan struct{}{}}
	}},
}

func nodePods(from, pods, vols int) []*v1.Pod {
	ps := make([]*v1.Pod, pods)
	for i := range ps {
		ps[i] = nodePod(from+i, vols)
	}
	return ps
}

// BenchmarkManagerWait is what pods wait in WaitForAttachAndMount that come one by one, at random, while the volumes of
// others are mounted. The percentiles are the result.
func BenchmarkManagerWait(b *testing.B) {
	const arrivals = 200
	for _, mounted := range []int{0, 1000, 10_000} {
		for _, many := range managers {
			b.Run(fmt.Sprintf("mounted=%d/impl=%s", mounted, many.impl), func(b *testing.B) {
				var waited []time.Duration
				for b.Loop() {
					m := many.make(b)
					m.fill(nodePods(0, mounted, 1))
					time.Sleep(500 * time.Millisecond) // Kubernetes' populator finishes its first round.
					runtime.GC()
					waited = append(waited, arrive(b, m, nodePods(mounted, arrivals, 1))...)
					m.stop()
				}
				percentiles(b, waited)
			})
		}
	}
}

// arrive adds pods at random times and returns how long each waited.
func arrive(b *testing.B, m nodeManager, ps []*v1.Pod) []time.Duration {
	waited := make([]time.Duration, len(ps))
	var all sync.WaitGroup
	for i, p := range ps {
		all.Go(func() {
			time.Sleep(rand.N(4 * time.Second))
			began := time.Now()
			m.add(p)
			if err := m.wait(p); err != nil {
				b.Error(err)
			}
			waited[i] = time.Since(began)
		})
	}
	all.Wait()
	return waited
}

func percentiles(b *testing.B, waited []time.Duration) {
	slices.Sort(waited)
	at := func(q float64) float64 { return float64(waited[int(q*float64(len(waited)-1))].Nanoseconds()) }
	b.ReportMetric(at(.5), "p50-ns")
	b.ReportMetric(at(.99), "p99-ns")
	b.ReportMetric(at(1), "max-ns")
}

// idleWindow is how long a manager that has nothing to do is watched.
const idleWindow = 3 * time.Second

// BenchmarkManagerIdle is what a manager costs in each second, and keeps in memory, when all that is wanted is mounted.
// Run it once.
func BenchmarkManagerIdle(b *testing.B) {
	for _, mounted := range []int{0, 10_000} {
		for _, many := range managers {
			b.Run(fmt.Sprintf("mounted=%d/impl=%s", mounted, many.impl), func(b *testing.B) {
				ps := nodePods(0, mounted, 1)
				before := liveHeap()
				m := many.make(b)
				m.fill(ps)
				live := liveHeap() - before
				debug.FreeOSMemory() // Else the runtime gives back for some time what the burst has left, at a percent of a processor.
				time.Sleep(time.Second)
				watchIdle(b)
				if mounted > 0 {
					b.ReportMetric(float64(live)/float64(mounted), "live-B/volume")
				}
				m.stop()
				runtime.KeepAlive(ps)
			})
		}
	}
}

// watchIdle reports what the process takes in each second. It includes what the runtime does by itself.
func watchIdle(b *testing.B) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used, woken, began := cpu(), switches(), time.Now()
	for b.Loop() {
		time.Sleep(idleWindow)
	}
	used, woken = cpu()-used, switches()-woken
	seconds := time.Since(began).Seconds()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(used.Nanoseconds())/seconds, "cpu-ns/s")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/seconds, "alloc-B/s")
	b.ReportMetric(float64(woken)/seconds, "wakeups/s")
}

// switches is how often threads of the process have waited for something and were woken.
func switches() int64 {
	var self unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &self)
	return self.Nvcsw
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bareManager is a flow of attachments and mounts without anything around it.
type bareManager struct {
	flow  *limits.Flow
	mu    sync.Mutex
	ready map[*v1.Pod]<-chan struct{}
}

func nothing() error { return nil }

func (m *bareManager) add(ps ...*v1.Pod) {
	for _, p := range ps {
		names := make([]string, len(p.Spec.Volumes))
		for i, v := range p.Spec.Volumes {
			names[i] = v.Name
		}
		ready := m.flow.AddPod(string(p.UID), names, nothing, nothing)
		m.mu.Lock()
		m.ready[p] = ready
		m.mu.Unlock()
	}
}

func (m *bareManager) wait(p *v1.Pod) error {
	m.mu.Lock()
	ready := m.ready[p]
	delete(m.ready, p)
	m.mu.Unlock()
	<-ready
	return nil
}

func (m *bareManager) fill(ps []*v1.Pod) {
	m.add(ps...)
	for _, p := range ps {
		_ = m.wait(p)
	}
}

func (*bareManager) stop() {}

// ourManager is ours, with the plugin that it is given.
type ourManager struct {
	tb testing.TB
	*volumemanager.Manager
	ctx   context.Context //nolint:containedctx // Every call has it, as it has the deadline of its caller.
	end   context.CancelFunc
	ended chan error
}

func newOurManager(tb testing.TB, plugin volume.VolumePlugin, o volumemanager.Options) *ourManager {
	o.NoMountChecks = true // The plugins of these measurements mount nothing.
	m := startOurs(tb, ourPlugins(tb, plugin), o)
	m.PodsComplete()
	return m
}

func (m *ourManager) add(ps ...*v1.Pod) {
	for _, p := range ps {
		if err := m.AddPod(m.ctx, p); err != nil {
			m.tb.Error(err)
		}
	}
}

func (m *ourManager) wait(p *v1.Pod) error { return m.WaitForAttachAndMount(m.ctx, p) }

func (m *ourManager) fill(ps []*v1.Pod) {
	m.add(ps...)
	for _, p := range ps {
		must(m.tb, m.wait(p))
	}
}
