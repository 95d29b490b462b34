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

// loadTime is the variable that says how long [TestLoad] goes on with 1,000 pods; ./test.sh load sets it. Without it there
// are a few for a moment.
const loadTime = "VOLUMEKIT_LOAD"

// TestLoad has pods of five tmpfs and five bind mounts come, change and go at random, on real mounts and with records. All
// of them are here but for one in twenty, and each round ends with all. While it goes on, neither memory nor the number of
// goroutines grows; in the end nothing is left of any pod.
func TestLoad(t *testing.T) {
	l := newLoad(t)
	begun := runtime.NumGoroutine()
	baseline := l.measure()
	const rounds = 4
	var memory []float64
	for range rounds {
		l.fill(t)
		l.settle(t)
		assert.LessOrEqual(t, goroutinesAtRest(begun), begun, "nothing runs while nothing is to be done")
		memory = append(memory, float64(l.measure()-baseline))
		t.Logf("%s: %d changes, %d pods with %d volumes: %.1f KB of memory for each volume", time.Since(l.began).Round(time.Millisecond),
			l.changes, len(l.here), l.volumes(), memory[len(memory)-1]/1024/float64(l.volumes()))
		if len(memory) < rounds {
			l.churn(t, l.duration/(rounds-1))
		}
	}
	assert.Less(t, memory[rounds-1], 1.1*slices.Max(memory[:rounds-1])+1<<20, "memory grows: %v", memory)
	l.removeAll(t)
	t.Logf("%s: nothing is left", time.Since(l.began).Round(time.Millisecond))
}

// load is a node under load.
type load struct {
	node    realNode
	manager *Manager
	stop    func()
	source  string // what binds show

	pods     int
	duration time.Duration
	began    time.Time

	mu      sync.Mutex
	changes int
	here    map[string]*v1.Pod
}

const (
	loadVolumes = 10
	loadWorkers = 16
)

func newLoad(t *testing.T) *load {
	t.Helper()
	l := &load{node: newRealNode(t), here: make(map[string]*v1.Pod), pods: 16, duration: 300 * time.Millisecond, began: time.Now()}
	if text := os.Getenv(loadTime); text != "" {
		var err error
		l.duration, err = time.ParseDuration(text)
		require.NoError(t, err)
		l.pods = 1000
	}
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

// loader is one of those who have pods come and go, each of whom has pods of his own.
type loader struct {
	*load
	rand      *rand.Rand
	pods, out []*v1.Pod // all of his, and those that are not here
}

// loaders lets everybody work at once.
func (l *load) loaders(t *testing.T, work func(*loader)) {
	t.Helper()
	var wg sync.WaitGroup
	all := make([]*loader, loadWorkers)
	for worker := range all {
		w := &loader{load: l, rand: rand.New(rand.NewPCG(uint64(worker), uint64(l.changes)))}
		for n := worker; n < l.pods; n += loadWorkers {
			pod := l.pod(fmt.Sprintf("pod-%d", n))
			w.pods = append(w.pods, pod)
			if l.here[pod.Name] == nil {
				w.out = append(w.out, pod)
			}
		}
		all[worker] = w
	}
	for _, w := range all {
		wg.Go(func() { work(w) })
	}
	wg.Wait()
	require.False(t, t.Failed())
}

// fill adds the pods that are not here.
func (l *load) fill(t *testing.T) {
	t.Helper()
	l.loaders(t, func(w *loader) {
		for len(w.out) > 0 && !t.Failed() {
			w.add(t)
		}
	})
}

// churn has pods come, change and go for a time.
func (l *load) churn(t *testing.T, d time.Duration) {
	t.Helper()
	ends := time.Now().Add(d)
	l.loaders(t, func(w *loader) {
		for time.Now().Before(ends) && !t.Failed() {
			w.change(t)
		}
	})
}

// change adds a pod when too many are not here, and else updates or removes one, and waits for that or not.
func (w *loader) change(t *testing.T) {
	ctx, waits := t.Context(), w.rand.IntN(4) == 0
	if len(w.out) > len(w.pods)/20 {
		pod := w.add(t)
		if waits {
			assert.NoError(t, w.manager.WaitForAttachAndMount(ctx, pod))
		}
		return
	}
	pod := w.pods[w.rand.IntN(len(w.pods))]
	switch {
	case slices.Contains(w.out, pod):
	case w.rand.IntN(5) == 0:
		assert.NoError(t, w.manager.UpdatePod(ctx, pod))
		w.changed(pod, pod)
	default:
		assert.NoError(t, w.manager.RemovePod(pod.UID))
		w.out = append(w.out, pod)
		w.changed(pod, nil)
		if waits {
			assert.NoError(t, w.manager.WaitForUnmount(ctx, pod))
		}
	}
}

// add adds one of the pods that are not here.
func (w *loader) add(t *testing.T) *v1.Pod {
	i := w.rand.IntN(len(w.out))
	pod := w.out[i]
	w.out = slices.Delete(w.out, i, i+1)
	assert.NoError(t, w.manager.AddPod(t.Context(), pod))
	w.changed(pod, pod)
	return pod
}

// changed says what is here now of a pod.
func (w *loader) changed(pod, now *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++
	if delete(w.here, pod.Name); now != nil {
		w.here[pod.Name] = now
	}
}

// settle waits until all that is wanted is there, and nothing else, and looks whether it is.
func (l *load) settle(t *testing.T) {
	t.Helper()
	for n := range l.pods {
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

// awaitQuiet waits until the manager has also forgotten the volumes, for which no call waits.
func (l *load) awaitQuiet(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return l.manager.reconciler.IsIdle() && len(l.manager.actual.GetVolumeNames()) == l.volumes()
	}, time.Minute, 10*time.Millisecond)
}

func (l *load) volumes() int { return len(l.here) * loadVolumes }

// goroutinesAtRest returns how many goroutines there are when those that have done their work have ended, too.
func goroutinesAtRest(want int) int {
	for patience := time.Now().Add(time.Minute); runtime.NumGoroutine() > want && time.Now().Before(patience); {
		runtime.Gosched()
	}
	return runtime.NumGoroutine()
}

// measure returns how many bytes of the heap are in use. Stacks are left out: there are as many as goroutines, which are counted,
// and the spans that they lie in are kept by the runtime for a while, as many as there ever were at a time.
func (l *load) measure() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
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
		assert.Empty(t, recordsIn(t, dir))
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
