package bench

import (
	"context"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	k8sfake "k8s.io/client-go/kubernetes/fake"
	k8sattach "k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	k8svolume "k8s.io/kubernetes/pkg/volume"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// attachController is a whole attach/detach controller that runs, with the objects that it watches.
type attachController interface {
	addPod(p *v1.Pod)
	deletePod(p *v1.Pod)
	stop()
}

// attachControllers starts each implementation, and returns when it knows what is attached. A figure is taken of as many
// changes as take it a second or two.
var attachControllers = []struct {
	impl    string
	changes int
	start   func(tb testing.TB, size clusterSize, w *witness) attachController
}{
	{"k8s", 10, startK8sAttach},
	{"ours", 2000, startOurAttach},
}

// BenchmarkAttachIdle is what a controller costs in each second when all that is wanted is attached. Run it once.
func BenchmarkAttachIdle(b *testing.B) {
	for _, size := range []clusterSize{{500, 10_000}, {5000, 100_000}} {
		for _, side := range attachControllers {
			b.Run(fmt.Sprintf("%s/impl=%s", size, side.impl), func(b *testing.B) {
				c := side.start(b, size, &witness{})
				defer c.stop()
				debug.FreeOSMemory() // As in ManagerIdle.
				time.Sleep(time.Second)
				watchIdle(b)
			})
		}
	}
}

// BenchmarkAttachChange is one volume more, and one less, from the pod that comes or goes: until the node's status says that
// it is attached, and until its plugin is asked to detach it. Run it once.
func BenchmarkAttachChange(b *testing.B) {
	for _, size := range []clusterSize{{50, 1000}, {500, 10_000}, {5000, 100_000}} {
		for _, side := range attachControllers {
			if side.impl == "k8s" && size.attachments > 10_000 {
				continue
			}
			b.Run(fmt.Sprintf("%s/impl=%s", size, side.impl), func(b *testing.B) {
				w := &witness{}
				c := side.start(b, size, w)
				defer c.stop()
				changeOne(b, c, w, size, 0)
				var attach, detach time.Duration
				used := cpu()
				for b.Loop() {
					for i := range side.changes {
						a, d := changeOne(b, c, w, size, 1+i%(spare-2))
						attach, detach = attach+a, detach+d
					}
				}
				n := float64(b.N * side.changes)
				b.ReportMetric(float64(attach.Nanoseconds())/n, "attach-ns")
				b.ReportMetric(float64(detach.Nanoseconds())/n, "detach-ns")
				b.ReportMetric(float64((cpu()-used).Nanoseconds())/n, "cpu-ns/change")
			})
		}
	}
}

// changeOne has a pod come and go that uses one of the spare claims.
func changeOne(tb testing.TB, c attachController, w *witness, size clusterSize, i int) (attach, detach time.Duration) {
	p, attached := expectSpare(w, size, i)
	began := time.Now()
	c.addPod(p)
	await(tb, attached, "attached")
	attach = time.Since(began)
	detached := expect(&w.detached, volumeName(size.attachments+i), p.Spec.NodeName)
	began = time.Now()
	c.deletePod(p)
	await(tb, detached, "detached")
	return attach, time.Since(began)
}

// expectSpare returns the pod that uses a spare claim, and what is closed when its volume is attached.
func expectSpare(w *witness, size clusterSize, i int) (*v1.Pod, <-chan struct{}) {
	p := size.pod(size.attachments + i)
	return p, expect(&w.attached, volumeName(size.attachments+i), p.Spec.NodeName)
}

func await(tb testing.TB, done <-chan struct{}, what string) {
	select {
	case <-done:
	case <-time.After(time.Minute):
		tb.Fatalf("the volume is not %s after a minute", what)
	}
}

// k8sAttach is Kubernetes' controller, as kube-controller-manager starts it, on its fake client. That plugins are asked
// whether volumes are still attached is turned off on both sides: it is the same work, once a minute.
type k8sAttach struct {
	tb     testing.TB
	client *k8sfake.Clientset
	end    context.CancelFunc
	ended  chan struct{}
}

func startK8sAttach(tb testing.TB, size clusterSize, w *witness) attachController {
	watch.DefaultChanSize = 1 << 18 // A fake watch panics when it is full.
	c := &k8sAttach{tb: tb, client: k8sfake.NewSimpleClientset(size.objects()...), ended: make(chan struct{})}
	var ctx context.Context
	ctx, c.end = context.WithCancel(tb.Context())
	nodes, err := c.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	must(tb, err)
	go func() {
		for event := range nodes.ResultChan() {
			if n, ok := event.Object.(*v1.Node); ok {
				w.sawNode(n)
			}
		}
	}()
	seen := informers.NewSharedInformerFactory(c.client, 0)
	controller, err := k8sattach.NewAttachDetachController(ctx, c.client,
		seen.Core().V1().Pods(), seen.Core().V1().Nodes(), seen.Core().V1().PersistentVolumeClaims(), seen.Core().V1().PersistentVolumes(),
		seen.Storage().V1().CSINodes(), seen.Storage().V1().CSIDrivers(), seen.Storage().V1().VolumeAttachments(),
		[]k8svolume.VolumePlugin{&clusterK8s{witness: w}}, nil, true, time.Minute, false, k8sattach.DefaultTimerConfig)
	must(tb, err)
	seen.Start(ctx.Done())
	seen.WaitForCacheSync(ctx.Done())
	go func() {
		defer close(c.ended)
		controller.Run(ctx)
		nodes.Stop()
		seen.Shutdown()
	}()
	first, attached := expectSpare(w, size, spare-1)
	c.addPod(first)
	await(tb, attached, "attached") // It works when it knows the others.
	// Its populator goes through all pods once it has begun. A pod that goes meanwhile is wanted for another minute.
	time.Sleep(time.Second + time.Duration(size.attachments)*50*time.Microsecond)
	return c
}

func (c *k8sAttach) addPod(p *v1.Pod) {
	_, err := c.client.CoreV1().Pods(namespace).Create(c.tb.Context(), p, metav1.CreateOptions{})
	must(c.tb, err)
}

func (c *k8sAttach) deletePod(p *v1.Pod) {
	must(c.tb, c.client.CoreV1().Pods(namespace).Delete(c.tb.Context(), p.Name, metav1.DeleteOptions{}))
}

func (c *k8sAttach) stop() {
	c.end()
	<-c.ended
}

// ourAttach is ours, on the store in memory.
type ourAttach struct {
	tb    testing.TB
	store store.Store
	end   context.CancelFunc
	ended chan error
}

func startOurAttach(tb testing.TB, size clusterSize, w *witness) attachController {
	s := store.NewMemory(store.MemoryOptions{History: 2 * size.attachments})
	c := &ourAttach{tb: tb, store: s, ended: make(chan error, 1)}
	var ctx context.Context
	ctx, c.end = context.WithCancel(tb.Context())
	fillStore(tb, s, size.objects())
	list, err := s.List(ctx, store.Nodes, "")
	must(tb, err)
	nodes, err := s.Watch(ctx, store.Nodes, "", list.ResourceVersion)
	must(tb, err)
	go func() {
		for event := range nodes {
			if n, ok := event.Object.(*v1.Node); ok {
				w.sawNode(n)
			}
		}
	}()
	controller := attachdetach.New(ourClusterPlugins(tb, w), s, attachdetach.Options{VerifyPeriod: -1})
	go func() { c.ended <- controller.Run(ctx) }()
	changeOne(tb, c, w, size, spare-1)
	for !settled(controller, size) {
		time.Sleep(200 * time.Millisecond)
	}
	return c
}

// settled reports whether everything is attached for certain.
func settled(c *attachdetach.Controller, size clusterSize) bool {
	attached := 0
	for _, at := range c.Status() {
		if at.Phase == attachdetach.PhaseAttached {
			attached++
		}
	}
	return attached == size.attachments
}

func ourClusterPlugins(tb testing.TB, w *witness) *volume.VolumePluginMgr {
	host, err := volume.NewHost(volume.HostOptions{RootDir: tb.TempDir(), NodeName: "node"})
	must(tb, err)
	plugins := volume.NewVolumePluginMgr(host)
	must(tb, plugins.InitPlugins(tb.Context(), &clusterOurs{witness: w}))
	return plugins
}

func (c *ourAttach) addPod(p *v1.Pod) { createIn(c.tb, c.store, p) }

func (c *ourAttach) deletePod(p *v1.Pod) {
	must(c.tb, c.store.Delete(c.tb.Context(), store.Key{Kind: store.Pods, Namespace: namespace, Name: p.Name}, store.Preconditions{}))
}

func (c *ourAttach) stop() {
	c.end()
	must(c.tb, <-c.ended)
}
