package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	k8svolume "k8s.io/kubernetes/pkg/volume"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// burst makes volumes wanted, each by a pod of its own, and returns when all of them are mounted; and the other way round.
type burst interface {
	mount(es []entry)
	// unmount returns when nothing is attached any more.
	unmount(es []entry)
	stop()
}

// slowMount is how long a slow plugin takes for each set-up.
const slowMount = 200 * time.Millisecond

type slowK8s struct{ instantK8s }

func (s *slowK8s) NewMounter(*k8svolume.Spec, *v1.Pod) (k8svolume.Mounter, error) { return s, nil }
func (*slowK8s) SetUp(k8svolume.MounterArgs) error                                { time.Sleep(slowMount); return nil }

type slowOurs struct{ instantOurs }

func (s *slowOurs) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) { return s, nil }
func (*slowOurs) SetUp(context.Context, volume.MounterArgs) error {
	time.Sleep(slowMount)
	return nil
}

// bursts makes each implementation of burst. That of Kubernetes has no pods to look at and no populator: it is its
// reconciler with its states and its executor. Ours is the whole manager.
var bursts = []struct {
	impl string
	make func(tb testing.TB, slow bool, volumes int) burst
}{
	{"k8s", func(tb testing.TB, slow bool, volumes int) burst {
		if slow {
			return newK8sReconciler(tb, &slowK8s{}, volumes)
		}
		return newK8sReconciler(tb, &instantK8s{}, volumes)
	}},
	{"ours", func(tb testing.TB, slow bool, volumes int) burst {
		if slow {
			return &ourBurst{newOurManager(tb, &slowOurs{}, volumemanager.Options{WorkersPerPlugin: volumes})}
		}
		return &ourBurst{newOurManager(tb, &instantOurs{}, volumemanager.Options{})}
	}},
	{"limit", func(_ testing.TB, slow bool, _ int) burst {
		if slow {
			return &bareBurst{limits.NewFlow(), func() error { time.Sleep(slowMount); return nil }}
		}
		return &bareBurst{limits.NewFlow(), nothing}
	}},
}

// BenchmarkManagerMount is the time from volumes that are wanted to volumes that are mounted. They come at a random point of
// the loop of Kubernetes' reconciler.
func BenchmarkManagerMount(b *testing.B) {
	for _, volumes := range []int{1, 1000, 5000} {
		es := entries(0, volumes, 1)
		for _, slow := range []bool{false, true} {
			for _, many := range bursts {
				b.Run(fmt.Sprintf("volumes=%d/slow=%v/impl=%s", volumes, slow, many.impl), func(b *testing.B) {
					b.ReportAllocs()
					var used time.Duration
					for b.Loop() {
						b.StopTimer()
						m := many.make(b, slow, volumes)
						time.Sleep(20*time.Millisecond + rand.N(k8sLoopPeriod))
						before := cpu()
						b.StartTimer()
						m.mount(es)
						b.StopTimer()
						used += cpu() - before
						m.stop()
						b.StartTimer()
					}
					b.ReportMetric(float64(used.Nanoseconds())/float64(b.N*volumes), "cpu-ns/volume")
					if slow {
						b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)-float64(slowMount), "added-ns")
					}
				})
			}
		}
	}
}

// BenchmarkManagerUnmount is the time until the volumes are unmounted, unstaged and detached.
func BenchmarkManagerUnmount(b *testing.B) {
	for _, volumes := range []int{1, 1000} {
		es := entries(0, volumes, 1)
		for _, many := range bursts[:2] {
			b.Run(fmt.Sprintf("volumes=%d/impl=%s", volumes, many.impl), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					m := many.make(b, false, volumes)
					m.mount(es)
					time.Sleep(20*time.Millisecond + rand.N(k8sLoopPeriod))
					b.StartTimer()
					m.unmount(es)
					b.StopTimer()
					m.stop()
					b.StartTimer()
				}
			})
		}
	}
}

type ourBurst struct{ *ourManager }

func (m *ourBurst) mount(es []entry) {
	for _, e := range es {
		m.add(e.pod)
	}
	for _, e := range es {
		must(m.tb, m.wait(e.pod))
	}
}

func (m *ourBurst) unmount(es []entry) {
	for _, e := range es {
		must(m.tb, m.RemovePod(e.pod.UID))
	}
	must(m.tb, m.WaitForNodeEmpty(m.ctx))
}

type bareBurst struct {
	flow  *limits.Flow
	setUp func() error
}

func (m *bareBurst) mount(es []entry) {
	ready := make([]<-chan struct{}, len(es))
	for i, e := range es {
		ready[i] = m.flow.AddPod(string(e.pod.UID), []string{string(e.name)}, nothing, m.setUp)
	}
	for _, c := range ready {
		<-c
	}
}

func (m *bareBurst) unmount([]entry) {}
func (m *bareBurst) stop()           {}
