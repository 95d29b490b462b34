package persistentvolume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// mixed returns n claims and n volumes of eight classes and up to n sizes, in random order. Every volume is large enough for
// every claim of its class, so that each claim gets one in whatever order they come.
func mixed(n int) (claims, volumes objectList) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		class := fmt.Sprintf("class-%d", i%8)
		request, bytes := fmt.Sprintf("%dMi", 1+random.IntN(n)), fmt.Sprintf("%dMi", n+random.IntN(n))
		volumes = append(volumes, newVolume(fmt.Sprintf("v-%d", i), func(pv *v1.PersistentVolume) {
			pv.Spec.StorageClassName, pv.Spec.Capacity = class, size(bytes)
		}))
		claims = append(claims, newClaim(fmt.Sprintf("c-%d", i), ofClass(class), func(claim *v1.PersistentVolumeClaim) {
			claim.Spec.Resources.Requests = size(request)
		}))
	}
	for _, list := range []objectList{claims, volumes} {
		random.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return claims, volumes
}

// bound waits until n claims have been seen Bound.
func bound(tb testing.TB, ctx context.Context, s store.Store, n int) {
	tb.Helper()
	list, err := s.List(ctx, store.PersistentVolumeClaims, "")
	require.NoError(tb, err)
	events, err := s.Watch(ctx, store.PersistentVolumeClaims, "", list.ResourceVersion)
	require.NoError(tb, err)
	if n == 0 {
		return
	}
	seen := map[string]struct{}{}
	note := func(obj any) {
		if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && claim.Status.Phase == v1.ClaimBound {
			seen[claim.Name] = struct{}{}
		}
	}
	for _, obj := range list.Items {
		note(obj)
	}
	for event := range events {
		note(event.Object)
		if len(seen) == n {
			return
		}
	}
	tb.Fatal("the watch ended")
}

func newPlugins(tb testing.TB) *volume.VolumePluginMgr {
	tb.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: tb.TempDir(), NodeName: "node-1"})
	require.NoError(tb, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(tb, plugins.InitPlugins(context.Background(), fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}})))
	return plugins
}

// BenchmarkBind binds claims to as many volumes of mixed sizes and classes. Which come last says who waits for whom.
func BenchmarkBind(b *testing.B) {
	for _, last := range []string{"both are there", "volumes come last", "claims come last"} {
		for _, n := range []int{1000, 10000, 40000} {
			b.Run(fmt.Sprintf("%s/%d", last, n), func(b *testing.B) {
				for b.Loop() {
					bindAll(b, last, n)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/claim")
			})
		}
	}
}

func bindAll(b *testing.B, last string, n int) {
	b.StopTimer()
	s := store.NewMemory(store.MemoryOptions{History: 20 * n})
	claims, volumes := mixed(n)
	first, second := append(claims, volumes...), objectList{}
	switch last {
	case "volumes come last":
		first, second = claims, volumes
	case "claims come last":
		first, second = volumes, claims
	}
	fill(b, s, first)
	c := New(newPlugins(b), s, Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	b.StartTimer()
	fill(b, s, second)
	bound(b, ctx, s, n)
	b.StopTimer()
	cancel()
	require.NoError(b, <-ended)
	b.StartTimer()
}

func fill(b *testing.B, s store.Store, list objectList) {
	b.Helper()
	for _, obj := range list {
		_, err := s.Create(context.Background(), obj)
		require.NoError(b, err)
	}
}

// BenchmarkLetGo deletes claims, beside as many pods of the namespace that use others, and waits until they have gone.
func BenchmarkLetGo(b *testing.B) {
	for _, n := range []int{500, 2000, 8000} {
		b.Run(fmt.Sprintf("claims=%d", n), func(b *testing.B) {
			for b.Loop() {
				letGo(b, n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/claim")
		})
	}
}

func letGo(b *testing.B, n int) {
	b.Helper()
	b.StopTimer()
	s := store.NewMemory(store.MemoryOptions{History: 20 * n})
	claims, volumes := mixed(n)
	fill(b, s, append(claims, volumes...))
	for i := range n {
		fill(b, s, objectList{newPod(fmt.Sprintf("p-%d", i), "n", fmt.Sprintf("of-other-%d", i))})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	ended := make(chan error, 1)
	c := New(newPlugins(b), s, Options{})
	go func() { ended <- c.Run(ctx) }()
	bound(b, ctx, s, n)
	list, err := s.List(ctx, store.PersistentVolumeClaims, "")
	require.NoError(b, err)
	events, err := s.Watch(ctx, store.PersistentVolumeClaims, "", list.ResourceVersion)
	require.NoError(b, err)
	b.StartTimer()
	for _, claim := range claims {
		key, err := store.KeyOf(claim)
		require.NoError(b, err)
		require.NoError(b, s.Delete(ctx, key, store.Preconditions{}))
	}
	for left := n; left > 0; {
		event, more := <-events
		require.True(b, more)
		if event.Type == store.Deleted {
			left--
		}
	}
	b.StopTimer()
	cancel()
	require.NoError(b, <-ended)
	b.StartTimer()
}
