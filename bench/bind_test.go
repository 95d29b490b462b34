package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	k8sfake "k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	k8spv "k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	k8spvtest "k8s.io/kubernetes/pkg/controller/volume/persistentvolume/testing"
	k8svolume "k8s.io/kubernetes/pkg/volume"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/store"
)

// binder is a whole controller of claims and volumes that has not begun yet.
type binder interface {
	// run returns when so many claims have been seen bound.
	run(claims int)
	stop()
}

var claimBinders = []struct {
	impl string
	make func(tb testing.TB, claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) binder
}{
	{"k8s", newK8sBinder},
	{"ours", newOurBinder},
}

// BenchmarkClaimsBound is claims bound to as many volumes of mixed sizes and classes, from the start of the controller until the last
// claim is Bound. Run it once. Ours binds as many claims in each size, in rounds, after as many that are not measured: a
// thousand alone would be over before the garbage collector begins, and of forty thousand each page of the heap would be new.
func BenchmarkClaimsBound(b *testing.B) {
	const most = 40_000
	for _, n := range []int{1000, 10_000, most} {
		for _, side := range claimBinders {
			rounds := most / n
			if side.impl == "k8s" {
				rounds = 1
			}
			if side.impl == "k8s" && n > 10_000 {
				continue
			}
			b.Run(fmt.Sprintf("claims=%d/impl=%s", n, side.impl), func(b *testing.B) {
				if side.impl == "ours" {
					for range rounds {
						bindAll(b, side.make, n)
					}
				}
				used := time.Duration(0)
				for b.Loop() {
					for range rounds {
						used += bindAll(b, side.make, n)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rounds*n), "ns/claim")
				b.ReportMetric(float64(used.Nanoseconds())/float64(b.N*rounds*n), "cpu-ns/claim")
			})
		}
	}
}

// bindAll has a new controller bind n claims, and returns the processor time that took. The time of the benchmark is that, too.
func bindAll(
	b *testing.B, newBinder func(testing.TB, []*v1.PersistentVolumeClaim, []*v1.PersistentVolume) binder, n int,
) time.Duration {
	b.StopTimer()
	defer b.StartTimer()
	claims, volumes := mixedClaims(n)
	c := newBinder(b, claims, volumes)
	defer c.stop()
	before := cpu()
	b.StartTimer()
	c.run(n)
	b.StopTimer()
	return cpu() - before
}

// mixedClaims returns n claims and n volumes of eight classes and up to n sizes, in random order. Every volume is large enough
// for every claim of its class, so that each claim gets one in whatever order they are looked at.
func mixedClaims(n int) (claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		class := fmt.Sprintf("class-%d", i%8)
		claims = append(claims, freeClaim(claimName(i), class, fmt.Sprintf("%dMi", 1+random.IntN(n))))
		volumes = append(volumes, freeVolume(volumeName(i), class, fmt.Sprintf("%dMi", n+random.IntN(n))))
	}
	random.Shuffle(n, func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	random.Shuffle(n, func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	return claims, volumes
}

// boundClaims counts claims that have become Bound.
type boundClaims struct{ seen map[string]struct{} }

func (c *boundClaims) see(obj runtime.Object) int {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && claim.Status.Phase == v1.ClaimBound {
		c.seen[claim.Name] = struct{}{}
	}
	return len(c.seen)
}

// k8sBinder is Kubernetes' controller on the fake client of its own tests.
type k8sBinder struct {
	tb         testing.TB
	ctx        context.Context
	end        context.CancelFunc
	ended      sync.WaitGroup
	claims     watch.Interface
	seen       informers.SharedInformerFactory
	controller *k8spv.PersistentVolumeController
}

func newK8sBinder(tb testing.TB, claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) binder {
	watch.DefaultChanSize = 1 << 18
	c := &k8sBinder{tb: tb}
	c.ctx, c.end = context.WithCancel(tb.Context())
	client := fakeClient(c.ctx, claims, volumes)
	c.seen = informers.NewSharedInformerFactory(client, 0)
	var err error
	c.claims, err = client.CoreV1().PersistentVolumeClaims("").Watch(c.ctx, metav1.ListOptions{})
	must(tb, err)
	core := c.seen.Core().V1()
	c.controller, err = k8spv.NewController(c.ctx, k8spv.ControllerParameters{
		KubeClient: client, SyncPeriod: 15 * time.Second, VolumePlugins: []k8svolume.VolumePlugin{&clusterK8s{witness: &witness{}}},
		VolumeInformer: core.PersistentVolumes(), ClaimInformer: core.PersistentVolumeClaims(), PodInformer: core.Pods(),
		NodeInformer: core.Nodes(), ClassInformer: c.seen.Storage().V1().StorageClasses(), EnableDynamicProvisioning: true,
	})
	must(tb, err)
	return c
}

// fakeClient returns a client that holds claims and volumes, compares versions, and tells of changes.
func fakeClient(ctx context.Context, claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) *k8sfake.Clientset {
	client := k8sfake.NewSimpleClientset()
	others, watchOthers := client.ReactionChain, client.WatchReactionChain
	client.ReactionChain, client.WatchReactionChain = nil, nil
	reactor := k8spvtest.NewVolumeReactor(ctx, client, nil, nil, nil)
	reactor.AddClaims(claims)
	reactor.AddVolumes(volumes)
	client.AddReactor("list", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) {
		list := &v1.PersistentVolumeList{}
		for _, pv := range volumes {
			list.Items = append(list.Items, *pv.DeepCopy())
		}
		return true, list, nil
	})
	client.AddReactor("list", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		list := &v1.PersistentVolumeClaimList{}
		for _, claim := range claims {
			list.Items = append(list.Items, *claim.DeepCopy())
		}
		return true, list, nil
	})
	for _, kind := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		client.AddWatchReactor(kind, func(action k8stesting.Action) (bool, watch.Interface, error) {
			w, err := reactor.Watch(action.GetResource(), action.GetNamespace())
			return true, w, err
		})
	}
	client.ReactionChain = append(client.ReactionChain, others...)
	client.WatchReactionChain = append(client.WatchReactionChain, watchOthers...)
	return client
}

func (c *k8sBinder) run(claims int) {
	c.seen.Start(c.ctx.Done())
	c.ended.Go(func() { c.controller.Run(c.ctx) })
	bound := boundClaims{map[string]struct{}{}}
	late := time.After(10 * time.Minute)
	for {
		select {
		case event := <-c.claims.ResultChan():
			if bound.see(event.Object) == claims {
				return
			}
		case <-late:
			c.tb.Fatalf("%d of %d claims are bound after ten minutes", len(bound.seen), claims)
		}
	}
}

func (c *k8sBinder) stop() {
	c.end()
	c.claims.Stop()
	c.ended.Wait()
	c.seen.Shutdown()
}

// ourBinder is ours, on the store in memory.
type ourBinder struct {
	tb         testing.TB
	ctx        context.Context
	end        context.CancelFunc
	ended      chan error
	claims     <-chan store.Event
	controller *persistentvolume.Controller
}

func newOurBinder(tb testing.TB, claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) binder {
	s := store.NewMemory(store.MemoryOptions{History: 20 * len(claims)})
	for _, claim := range claims {
		createIn(tb, s, claim)
	}
	for _, pv := range volumes {
		createIn(tb, s, pv)
	}
	c := &ourBinder{tb: tb, ended: make(chan error, 1)}
	c.ctx, c.end = context.WithCancel(tb.Context())
	list, err := s.List(c.ctx, store.PersistentVolumeClaims, "")
	must(tb, err)
	c.claims, err = s.Watch(c.ctx, store.PersistentVolumeClaims, "", list.ResourceVersion)
	must(tb, err)
	c.controller = persistentvolume.New(ourClusterPlugins(tb, &witness{}), s, persistentvolume.Options{})
	return c
}

func (c *ourBinder) run(claims int) {
	go func() { c.ended <- c.controller.Run(c.ctx) }()
	bound := boundClaims{map[string]struct{}{}}
	for event := range c.claims {
		if bound.see(event.Object) == claims {
			return
		}
	}
	c.tb.Fatalf("the watch ended with %d of %d claims bound", len(bound.seen), claims)
}

func (c *ourBinder) stop() {
	c.end()
	must(c.tb, <-c.ended)
}
