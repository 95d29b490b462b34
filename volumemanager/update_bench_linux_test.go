package volumemanager

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// sharedPlugin serves PersistentVolumes that any pod may share, and does nothing at once.
type sharedPlugin struct{ instantPlugin }

func (p *sharedPlugin) CanSupport(spec *volume.Spec) bool { return spec.PersistentVolume != nil }

func (p *sharedPlugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
}

// BenchmarkUpdatePodOfASharedVolume is what a change of one pod costs whose volumes all pods of the node have: the time of the call,
// and the processor time of all that follows.
func BenchmarkUpdatePodOfASharedVolume(b *testing.B) {
	for _, volumes := range []int{1, 8} {
		for _, count := range []int{200, 2000, 8000} {
			b.Run(fmt.Sprintf("volumes=%d/pods=%d", volumes, count), func(b *testing.B) { updateShared(b, volumes, count) })
		}
	}
}

func updateShared(b *testing.B, volumes, count int) {
	b.Helper()
	claims := store.NewMemory(store.MemoryOptions{})
	names := make([]string, volumes)
	for i := range names {
		names[i] = "shared-" + strconv.Itoa(i)
		claim := claimOfName(names[i])
		claim.Spec.VolumeName, claim.Status.Phase = "pv-"+names[i], v1.ClaimBound
		created, err := claims.Create(b.Context(), claim)
		require.NoError(b, err)
		claim.UID = created.(metav1.Object).GetUID()
		_, err = claims.Create(b.Context(), volumeOfClaim(claim))
		require.NoError(b, err)
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: b.TempDir(), NodeName: testNode})
	require.NoError(b, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(b, plugins.InitPlugins(b.Context(), &sharedPlugin{}))
	m, err := New(plugins, Options{NoMountChecks: true, Store: claims, NoRecords: true, Resync: -1, WaitTimeout: 5 * time.Minute})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-ended)
	})
	pods := make([]*v1.Pod, count)
	began := time.Now()
	for i := range pods {
		pods[i] = podOf("pod-"+strconv.Itoa(i), names...)
		require.NoError(b, m.AddPod(b.Context(), pods[i]))
	}
	m.PodsComplete()
	for _, pod := range pods {
		require.NoError(b, m.WaitForAttachAndMount(b.Context(), pod))
	}
	added := time.Since(began)
	before, next := processorTime(), 0
	b.ResetTimer()
	for b.Loop() {
		pod := pods[next%count].DeepCopy()
		pod.Annotations = map[string]string{"edition": strconv.Itoa(next)}
		require.NoError(b, m.UpdatePod(b.Context(), pod))
		require.NoError(b, m.WaitForAttachAndMount(b.Context(), pod))
		next++
	}
	b.ReportMetric(float64(processorTime()-before)/float64(next), "cpu-ns/op")
	b.ReportMetric(float64(added.Microseconds())/float64(count), "add-µs/pod")
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
