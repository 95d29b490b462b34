package volumemanager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// loadTime is the variable that says how long [TestLoad] goes on; ./test.sh sets it.
const loadTime = "VOLUMEKIT_LOAD"

// TestLoad has 1,000 pods of five tmpfs and five bind mounts come, change and go at random, on real mounts and with
// records. While it goes on, neither the memory for each volume nor the number of goroutines grows; in the end nothing is
// left of any pod.
func TestLoad(t *testing.T) {
	l := newLoad(t)
	baseline := l.measure()
	begun := runtime.NumGoroutine()
	rounds := 3
	var perVolume []float64
	for range rounds {
		l.churn(t, loadDuration(t)/time.Duration(rounds))
		l.settle(t)
		assert.Equal(t, begun, runtime.NumGoroutine(), "nothing runs while nothing is to be done")
		perVolume = append(perVolume, float64(l.measure()-baseline)/float64(l.volumes()))
		t.Logf("%d changes, %d pods with %d volumes: %.1f KB of memory for each volume",
			l.changes, len(l.here), l.volumes(), perVolume[len(perVolume)-1]/1024)
	}
	assert.Less(t, perVolume[rounds-1], 1.3*slices.Max(perVolume[:rounds-1]), "memory grows: %v", perVolume)
	l.removeAll(t)
}

func loadDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(loadTime)
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// load is a node under load.
type load struct {
	node    realNode
	manager *Manager
	stop    func()
	source  string // what binds show
	changes int
	here    map[string]*v1.Pod
}

const (
	loadPods    = 1000
	loadVolumes = 10
	loadWorkers = 16
)

func newLoad(t *testing.T) *load {
	t.Helper()
	l := &load{node: newRealNode(t), here: make(map[string]*v1.Pod)}
	mounter := mount.New(mount.Options{})
	l.source = filepath.Join(l.node.root, "source")
	require.NoError(t, os.Mkdir(l.source, 0o700))
	l.node.plugins = volume.NewVolumePluginMgr(l.node.plugins.Host())
	require.NoError(t, l.node.plugins.InitPlugins(t.Context(), &loadPlugin{tmpfsPlugin{mounter: mounter}}))
	l.node.options.WaitTimeout = 5 * time.Minute
	l.mountRuntimeDir(t, mounter)
	m, stop := l.node.start(t)
	l.manager, l.stop = m, sync.OnceFunc(stop)
	t.Cleanup(l.stop)
	l.manager.PodsComplete()
	// What is made once and kept is made now.
	pod := l.pod("warm")
	require.NoError(t, l.manager.AddPod(t.Context(), pod))
	require.NoError(t, l.manager.WaitForAttachAndMount(t.Context(), pod))
	require.NoError(t, l.manager.RemovePod(pod.UID))
	require.NoError(t, l.manager.WaitForNodeEmpty(t.Context()))
	return l
}

// mountRuntimeDir puts the records of mounts where they belong: on a tmpfs.
func (l *load) mountRuntimeDir(t *testing.T, mounter mount.Interface) {
	t.Helper()
	dir := l.node.options.RuntimeDir
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: []string{"mode=700"}}))
	t.Cleanup(func() {
		assert.NoError(t, mount.UnmountPath(context.WithoutCancel(t.Context()), mounter, dir, mount.UnmountOptions{}))
	})
}

// pod returns a pod with half of its volumes a tmpfs, and half a bind.
func (l *load) pod(name string) *v1.Pod {
	names := make([]string, 0, loadVolumes)
	for i := range loadVolumes {
		names = append(names, fmt.Sprintf("-v%d", i))
	}
	pod := podOf(name, names...)
	for i := range pod.Spec.Volumes {
		source := &pod.Spec.Volumes[i].VolumeSource
		*source = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}
		if i%2 == 1 {
			*source = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: l.source}}
		}
	}
	return pod
}

// churn has pods come, change and go for a time, each pod in the hands of one worker.
func (l *load) churn(t *testing.T, d time.Duration) {
	t.Helper()
	ends, seed := time.Now().Add(d), uint64(l.changes)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for worker := range loadWorkers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), seed))
			for time.Now().Before(ends) && !t.Failed() {
				n := r.IntN(loadPods/loadWorkers)*loadWorkers + worker
				pod := l.pod(fmt.Sprintf("pod-%d", n))
				mu.Lock()
				_, here := l.here[pod.Name]
				mu.Unlock()
				stays := l.change(t, r, pod, here)
				mu.Lock()
				l.changes++
				if delete(l.here, pod.Name); stays {
					l.here[pod.Name] = pod
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
}

// change adds a pod, or updates or removes one that is here, and waits for that or not. It returns whether the pod stays.
func (l *load) change(t *testing.T, r *rand.Rand, pod *v1.Pod, here bool) (stays bool) {
	ctx, waits := t.Context(), r.IntN(4) == 0
	if here && r.IntN(5) > 0 {
		assert.NoError(t, l.manager.RemovePod(pod.UID))
		if waits {
			assert.NoError(t, l.manager.WaitForUnmount(ctx, pod))
		}
		return false
	}
	if here {
		assert.NoError(t, l.manager.UpdatePod(ctx, pod))
	} else {
		assert.NoError(t, l.manager.AddPod(ctx, pod))
	}
	if waits {
		assert.NoError(t, l.manager.WaitForAttachAndMount(ctx, pod))
	}
	return true
}

// settle waits until all that is wanted is there, and nothing else, and looks whether it is.
func (l *load) settle(t *testing.T) {
	t.Helper()
	for n := range loadPods {
		name := fmt.Sprintf("pod-%d", n)
		if pod := l.here[name]; pod != nil {
			require.NoError(t, l.manager.WaitForAttachAndMount(t.Context(), pod))
			continue
		}
		require.NoError(t, l.manager.WaitForUnmount(t.Context(), l.pod(name)))
	}
	l.awaitQuiet(t)
	assert.Len(t, realMountsBelow(t, filepath.Join(l.node.root, "lib")), l.volumes())
	assert.Len(t, l.manager.Status().Volumes, l.volumes())
}

// awaitQuiet waits until what nobody waits for has been done, too: that a volume is forgotten.
func (l *load) awaitQuiet(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return l.manager.isQuiet() && l.manager.dirty.Len() == 0 && len(l.manager.actual.GetVolumeNames()) == l.volumes()
	}, time.Minute, 10*time.Millisecond)
}

func (l *load) volumes() int { return len(l.here) * loadVolumes }

// measure returns how much memory is in use.
func (l *load) measure() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// removeAll proves that nothing is left when every pod has gone.
func (l *load) removeAll(t *testing.T) {
	t.Helper()
	for _, pod := range l.here {
		require.NoError(t, l.manager.RemovePod(pod.UID))
	}
	require.NoError(t, l.manager.WaitForNodeEmpty(t.Context()))
	l.here = nil
	l.awaitQuiet(t)
	l.stop()
	lib := filepath.Join(l.node.root, "lib")
	assert.Empty(t, realMountsBelow(t, lib))
	left, err := filepath.Glob(filepath.Join(lib, "pods", "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
	for _, dir := range []string{l.node.options.RuntimeDir, l.node.options.StateDir} {
		left, err := filepath.Glob(filepath.Join(dir, "*.record"))
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

// loadPlugin mounts a tmpfs for an emptyDir, and binds the directory of a hostPath.
type loadPlugin struct{ tmpfsPlugin }

func (p *loadPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && (spec.Volume.EmptyDir != nil || spec.Volume.HostPath != nil)
}

func (p *loadPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	v := &loadVolume{tmpfsVolume: p.volume(spec.Name(), pod.UID)}
	v.request = mount.Request{Source: "tmpfs", Target: v.path, FSType: "tmpfs", Options: []string{"size=1m"}}
	if spec.Volume.HostPath != nil {
		v.request = mount.Request{Source: spec.Volume.HostPath.Path, Target: v.path, Options: []string{"bind"}}
	}
	return v, nil
}

type loadVolume struct {
	*tmpfsVolume
	request mount.Request
}

// SetUp makes the directory first: of one that is there the kernel says at once whether it is a mount.
func (v *loadVolume) SetUp(ctx context.Context, _ volume.MounterArgs) error {
	if err := os.MkdirAll(v.path, 0o750); err != nil {
		return err
	}
	if mounted, err := v.mounter.IsMountPoint(ctx, v.path); err != nil || mounted {
		return err
	}
	return v.mounter.Mount(ctx, v.request)
}
