package scheduling

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// large is a cluster as that of the figures in docs/benchmarks.md: volumes local to nodes, a capacity for each node, 20 volumes on each.
type large struct {
	s     *Scheduler
	nodes int
}

func newLarge(nodes, volumes int) *large {
	l := &large{s: New(store.NewMemory(store.MemoryOptions{}), Options{}), nodes: nodes}
	x := l.s.index
	for _, class := range []*storagev1.StorageClass{newClass("static-a"), newClass("static-b"), newClass("made", makes)} {
		x.refreshClass(class.Name, class)
	}
	x.capacities.drivers["csi.example"] = newDriver()
	for i := range nodes {
		name := nodeName(i)
		x.refreshNode(name, newNode(name, v1.LabelTopologyZone, fmt.Sprint("zone-", i%10), "kubernetes.io/os", "linux", "kubernetes.io/arch", "amd64", "pool", fmt.Sprint(i%3)))
		x.refreshCSINode(name, newCSINode(name, int32(21+i%4)))
		capacity := newCapacity(name, fmt.Sprint(40+i%50, "Gi"))
		x.capacities.refresh(nn(name), capacity)
	}
	for i := range volumes {
		l.addVolume(i)
	}
	for i := range 20 * nodes {
		l.use(i)
	}
	return l
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// addVolume adds a volume of one node; a quarter of them is bound.
func (l *large) addVolume(i int) {
	name := fmt.Sprint("pv-", i)
	pv := newVolume(name, holding(fmt.Sprint(1+i%7, "Gi")), volumeClass([]string{"static-a", "static-b"}[i%2]), atNode(nodeName(i/2%l.nodes)))
	pv.Spec.CSI.Driver = "local.example"
	if i%8 > 5 {
		refTo(name, types.UID("uid-"+name))(pv)
		l.s.index.refreshClaim(nn(name), newClaim(name, boundTo(name)))
	}
	l.s.index.refreshVolume(name, pv)
}

// use puts a pod with a volume on a node.
func (l *large) use(i int) {
	name := fmt.Sprint("used-", i)
	x := l.s.index
	x.refreshVolume(name, newVolume(name, refTo(name, types.UID("uid-"+name))))
	x.refreshClaim(nn(name), newClaim(name, boundTo(name)))
	x.refreshPod(nn(name), on(newPod(name, name), nodeName(i%l.nodes)))
	x.refreshAttachment(name, newAttachment(name, name, nodeName(i%l.nodes)))
}

// pod returns a pod of one of these kinds: bound, existing volumes, new volumes, attach limits.
func (l *large) pod(kind string, i int) *v1.Pod {
	p := newPod(fmt.Sprint(kind, i))
	for j := range 3 {
		name := fmt.Sprint(kind, i, "-", j)
		claim := newClaim(name)
		switch kind {
		case "bound":
			ofClass("static-a")(claim)
			boundTo(name)(claim)
			pv := newVolume(name, refTo(name, claim.UID), atNode(nodeName(i%l.nodes)))
			pv.Spec.CSI.Driver = "local.example"
			l.s.index.refreshVolume(name, pv)
		case "existing":
			ofClass([]string{"static-a", "static-b"}[j%2])(claim)
		case "new":
			ofClass("made")(claim)
			asks("10Gi")(claim)
		case "limits":
			boundTo(name)(claim)
			l.s.index.refreshVolume(name, newVolume(name, refTo(name, claim.UID)))
		}
		l.s.index.refreshClaim(nn(name), claim)
		p.Spec.Volumes = append(p.Spec.Volumes, newPod("", name).Spec.Volumes...)
	}
	return p
}

var kinds = []string{"bound", "existing", "new", "limits"}

func BenchmarkFind(b *testing.B) {
	for _, nodes := range []int{50, 500, 5000} {
		l := newLarge(nodes, 20000)
		for _, kind := range kinds {
			p := l.pod(kind, 1)
			b.Run(fmt.Sprintf("%s/%d nodes", kind, nodes), func(b *testing.B) {
				b.ReportAllocs()
				before := processorTime(b)
				for b.Loop() {
					result, err := l.s.Find(p)
					if err != nil || result.Len() == 0 {
						b.Fatal(err, "no node fits")
					}
				}
				b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// processorTime returns what this process has used, in nanoseconds.
func processorTime(b *testing.B) int64 {
	var usage unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// One after the other, each found, and reserved on the best node.
func BenchmarkPlace1000(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			var used int64
			for b.Loop() {
				b.StopTimer()
				l := newLarge(5000, 20000)
				pods := make([]*v1.Pod, 1000)
				for i := range pods {
					pods[i] = l.pod(kind, i)
				}
				before := processorTime(b)
				b.StartTimer()
				for _, p := range pods {
					result, err := l.s.Find(p)
					require.NoError(b, err)
					best, score := "", -1
					for node, s := range result.Scores() {
						if s > score {
							best, score = node, s
						}
					}
					_, err = l.s.Reserve(p, best)
					require.NoError(b, err)
				}
				used += processorTime(b) - before
			}
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
		})
	}
}

func BenchmarkUpkeep(b *testing.B) {
	l := newLarge(5000, 20000)
	x := l.s.index
	free := [2]*v1.PersistentVolume{newVolume("pv-0", volumeClass("static-a"), atNode("node-0000")), newVolume("pv-0", volumeClass("static-a"), atNode("node-0000"), holding("2Gi"))}
	claims := [2]*v1.PersistentVolumeClaim{newClaim("used-0", boundTo("used-0")), newClaim("used-0", boundTo("used-0"))}
	nodes := [2]*v1.Node{newNode("node-0000", "x", "1"), newNode("node-0000", "x", "2")}
	attachments := [2]*storagev1.VolumeAttachment{newAttachment("used-0", "used-0", "node-0000"), newAttachment("used-0", "used-0", "node-0000")}
	capacities := [2]*storagev1.CSIStorageCapacity{newCapacity("node-0000", "1Gi"), newCapacity("node-0000", "2Gi")}
	capacities[1].ResourceVersion = "2"
	pods := [2]*v1.Pod{nil, on(newPod("used-0", "used-0"), "node-0000")}
	for name, do := range map[string]func(i int){
		"volume":     func(i int) { x.refreshVolume("pv-0", free[i%2]) },
		"claim":      func(i int) { x.refreshClaim(nn("used-0"), claims[i%2]) },
		"node":       func(i int) { x.refreshNode("node-0000", nodes[i%2]) },
		"attachment": func(i int) { x.refreshAttachment("used-0", attachments[i%2]) },
		"capacity":   func(i int) { x.capacities.refresh(nn("node-0000"), capacities[i%2]) },
		"pod":        func(i int) { x.refreshPod(nn("used-0"), pods[i%2]) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			for i := 0; b.Loop(); i++ {
				do(i)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// From Bind until it returns, with a controller that binds each claim as soon as its volume names it.
func BenchmarkBind(b *testing.B) {
	for _, pods := range []int{1, 100} {
		b.Run(fmt.Sprint(pods, " pods"), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				bindAll(b, pods)
			}
		})
	}
}

// bindAll binds the claims of pods with three claims each.
func bindAll(b *testing.B, pods int) {
	memory := store.NewMemory(store.MemoryOptions{})
	ctx, cancel := context.WithCancel(b.Context())
	create := func(obj store.Object) {
		_, err := memory.Create(ctx, obj)
		require.NoError(b, err)
	}
	create(newClass("late"))
	create(newNode("node-1"))
	for i := range 3 * pods {
		create(newVolume(fmt.Sprint("v-", i), atNode("node-1")))
		create(newClaim(fmt.Sprint("c-", i)))
	}
	s := New(memory, Options{})
	ended := make(chan error, 2)
	go func() { ended <- s.Run(ctx) }()
	require.True(b, s.WaitSynced(ctx))
	all, err := memory.List(ctx, store.PersistentVolumes, "")
	require.NoError(b, err)
	events, err := memory.Watch(ctx, store.PersistentVolumes, "", all.ResourceVersion)
	require.NoError(b, err)
	go func() {
		for e := range events {
			if pv, ok := e.Object.(*v1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
				claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, memory, "default", pv.Spec.ClaimRef.Name)
				if err == nil {
					boundTo(pv.Name)(claim)
					_, _ = store.Update(ctx, memory, claim)
				}
			}
		}
		ended <- nil
	}()
	reservations := make([]*Reservation, pods)
	for i := range reservations {
		p := newPod(fmt.Sprint("p-", i), fmt.Sprint("c-", 3*i), fmt.Sprint("c-", 3*i+1), fmt.Sprint("c-", 3*i+2))
		reservations[i], err = s.Reserve(p, "node-1")
		require.NoError(b, err)
	}
	done := make(chan error, pods)
	b.StartTimer()
	for _, r := range reservations {
		go func() { done <- r.Bind(ctx) }()
	}
	for range reservations {
		require.NoError(b, <-done)
	}
	b.StopTimer()
	cancel()
	<-ended
	<-ended
	b.StartTimer()
}
