package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// toldKernel is a mount table without any mounts, of which the test says what has changed. It counts who asks it.
type toldKernel struct {
	news chan mount.TableChange

	mu     sync.Mutex
	ids    map[string]uint64
	looks  []string // paths; "*" for the whole table
	byID   int      // looks at a mount by its id
	lastID uint64
	// device is the number of the device that all mounts show.
	device uint32
}

func newToldKernel() *toldKernel {
	return &toldKernel{news: make(chan mount.TableChange), ids: make(map[string]uint64)}
}

// mounted says that something is mounted at path; unmounted that nothing is. It returns the unique id.
func (k *toldKernel) mounted(path string) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lastID++
	k.ids[path] = k.lastID
	return k.lastID
}

func (k *toldKernel) unmounted(path string) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := k.ids[path]
	delete(k.ids, path)
	return id
}

// asked returns what was looked at since it was last asked.
func (k *toldKernel) asked() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	looks := k.looks
	k.looks = nil
	return looks
}

func (k *toldKernel) IsMountPoint(_ context.Context, path string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks = append(k.looks, path)
	return k.ids[path] != 0, nil
}

func (k *toldKernel) Lookup(_ context.Context, path string) (mount.MountPoint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks = append(k.looks, path)
	if k.ids[path] == 0 {
		return mount.MountPoint{}, mount.ErrNotMounted
	}
	return k.pointLocked(path), nil
}

func (k *toldKernel) pointLocked(path string) mount.MountPoint {
	return mount.MountPoint{Path: path, UniqueID: k.ids[path], Major: k.device}
}

func (k *toldKernel) LookupID(_ context.Context, id uint64) (mount.MountPoint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byID++
	for path, other := range k.ids {
		if other == id {
			return k.pointLocked(path), nil
		}
	}
	return mount.MountPoint{}, mount.ErrNotMounted
}

func (k *toldKernel) List(context.Context) ([]mount.MountPoint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks = append(k.looks, "*")
	var table []mount.MountPoint
	for path := range k.ids {
		table = append(table, k.pointLocked(path))
	}
	return table, nil
}

func (k *toldKernel) Watch(ctx context.Context, changed func(mount.TableChange)) error {
	for {
		select {
		case c := <-k.news:
			changed(c)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (k *toldKernel) SyncFS(context.Context, string) error { return nil }

func (k *toldKernel) UnmountHung(context.Context, string, mount.UnmountOptions) error {
	return errors.ErrUnsupported
}

// toldPlugin is an instantPlugin whose volumes are mounted.
type toldPlugin struct {
	instantPlugin
	kernel *toldKernel
}

func (p *toldPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.volume(spec.Name(), pod.UID), nil
}

func (p *toldPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	return p.volume(name, uid), nil
}

func (p *toldPlugin) volume(name string, uid types.UID) *toldVolume {
	return &toldVolume{instantVolume: instantVolume{path: p.host.GetPodVolumeDir(uid, p.GetPluginName(), name)}, kernel: p.kernel}
}

type toldVolume struct {
	instantVolume
	kernel *toldKernel
}

func (v *toldVolume) SetUp(context.Context, volume.MounterArgs) error {
	v.kernel.mounted(v.path)
	return nil
}

func (v *toldVolume) TearDown(context.Context) error {
	v.kernel.unmounted(v.path)
	return nil
}

// idleNode is a node that does nothing: every volume of every pod is mounted.
type idleNode struct {
	t      *testing.T
	kernel *toldKernel
	m      *Manager
	pods   []*v1.Pod
}

// newIdleNode is called in a bubble. It has the given pods with ten volumes each.
func newIdleNode(t *testing.T, pods int) *idleNode {
	t.Helper()
	return newIdleNodeOn(t, newToldKernel(), pods)
}

func newIdleNodeOn(t *testing.T, kernel *toldKernel, pods int) *idleNode {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: testNode})
	require.NoError(t, err)
	n := &idleNode{t: t, kernel: kernel}
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), &toldPlugin{kernel: n.kernel}))
	n.m, err = New(plugins, Options{Mounter: n.kernel, NoRecords: true, Store: store.NewMemory(store.MemoryOptions{}), Resync: 1000 * time.Hour})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	n.m.PodsComplete()
	for i := range pods {
		pod := instantPod(fmt.Sprintf("pod-%d", i))
		for v := 1; v < 10; v++ {
			more := pod.Spec.Volumes[0]
			more.Name = fmt.Sprintf("cache-%d", v)
			pod.Spec.Volumes = append(pod.Spec.Volumes, more)
			pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: more.Name, MountPath: "/" + more.Name})
		}
		n.pods = append(n.pods, pod)
		require.NoError(t, n.m.AddPod(t.Context(), pod))
	}
	for _, pod := range n.pods {
		require.NoError(t, n.m.WaitForAttachAndMount(t.Context(), pod))
	}
	synctest.Wait()
	return n
}

// path is where the first volume of a pod is.
func (n *idleNode) path(pod *v1.Pod) string {
	n.t.Helper()
	return n.m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["cache"].Path
}

// tell has the kernel tell of a change, and returns what was looked at for it.
func (n *idleNode) tell(c mount.TableChange) []string {
	n.t.Helper()
	n.kernel.asked()
	n.kernel.news <- c
	synctest.Wait()
	return n.kernel.asked()
}

// runs returns how often goroutines of the process have begun to run, a sample of one in eight.
func runs() (n uint64) {
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(sample)
	for _, count := range sample[0].Value.Float64Histogram().Counts {
		n += count
	}
	return n
}

// TestAnIdleNodeDoesNothing: between two resyncs, also for a whole day, no volume is planned, no mount is looked up, the mount
// table is not read, nothing is allocated, and no goroutine wakes up. The node has 10,000 volumes; with the race detector, 1,000.
func TestAnIdleNodeDoesNothing(t *testing.T) {
	const wakeUps = uint64(200)
	pods := 1000
	if raceDetector {
		pods = 100
	}
	inBubble(t, func(t *testing.T) {
		n := newIdleNode(t, pods)
		planned := n.m.Status().Planned
		assert.GreaterOrEqual(t, planned, uint64(10*pods))
		n.kernel.asked()
		// Allocations and runs are counted for the whole process. The collector and what earlier tests have left run too, but not on
		// every day; what the manager does by itself it does each day.
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		debug.FreeOSMemory()
		var allocated float64
		var ran uint64
		for range 20 {
			before := runs()
			allocated = testing.AllocsPerRun(1, func() { pass(24 * time.Hour) })
			ran = runs() - before
			if allocated == 0 && ran < wakeUps {
				break
			}
		}
		assert.Zero(t, allocated)
		assert.Less(t, ran, wakeUps, "a wake-up each minute would be 2,880, one each second 172,800; an eighth of them is counted")
		assert.Equal(t, planned, n.m.Status().Planned)
		assert.Empty(t, n.kernel.asked())
	})
}

// TestAFilesystemIsLookedAtOnceHoweverManyMountsItHas, without the mount table, a path or a plan, and no more when they are gone.
func TestAFilesystemIsLookedAtOnceHoweverManyMountsItHas(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		kernel := newToldKernel()
		kernel.device = 7
		n := newIdleNodeOn(t, kernel, 10)
		looksIn := func(d time.Duration) int {
			kernel.mu.Lock()
			before := kernel.byID
			kernel.mu.Unlock()
			pass(d)
			synctest.Wait()
			kernel.mu.Lock()
			defer kernel.mu.Unlock()
			return kernel.byID - before
		}
		planned := n.m.Status().Planned
		kernel.asked()
		assert.Equal(t, 100, looksIn(100*defaultFilesystemCheckInterval))
		assert.Equal(t, planned, n.m.Status().Planned)
		assert.Empty(t, kernel.asked())
		for _, pod := range n.pods {
			require.NoError(t, n.m.RemovePod(pod.UID))
			require.NoError(t, n.m.WaitForUnmount(t.Context(), pod))
		}
		assert.Zero(t, looksIn(time.Hour))
	})
}

// TestNewsOfAMountIsLookedAtThereAlone, however many others there are.
func TestNewsOfAMountIsLookedAtThereAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newIdleNode(t, 20)
		planned := n.m.Status().Planned
		elsewhere := mount.MountPoint{Path: "/srv/elsewhere", UniqueID: 1 << 40}
		assert.Empty(t, n.tell(mount.TableChange{Attached: []mount.MountPoint{elsewhere}, Options: true}), "it is not ours")
		assert.Empty(t, n.tell(mount.TableChange{Detached: []uint64{elsewhere.UniqueID}, Options: true}))
		path := n.path(n.pods[7])
		onTop := mount.MountPoint{Path: path + "/sub", UniqueID: 1<<40 + 1}
		assert.Empty(t, n.tell(mount.TableChange{Attached: []mount.MountPoint{onTop}}), "what is in a volume is its owner's")
		assert.Equal(t, planned, n.m.Status().Planned)

		looks := n.tell(mount.TableChange{Detached: []uint64{n.kernel.unmounted(path)}})
		assert.NotEmpty(t, looks)
		for _, look := range looks {
			assert.Contains(t, append(ancestors(path), path), look, "nothing else was looked at")
		}
		assert.Equal(t, PhaseMounted, n.m.PodStatus(n.pods[7].UID)[0].Phase, "and it was set up again")
		_, err := n.kernel.Lookup(t.Context(), path)
		require.NoError(t, err)
		assert.Equal(t, []string{"*"}, n.tell(mount.TableChange{Options: true}), "a mount was remounted: the table is read once for all mounts")
	})
}

// ancestors returns the directories above a path.
func ancestors(path string) (above []string) {
	for i, c := range path {
		if c == '/' && i > 0 {
			above = append(above, path[:i])
		}
	}
	return append(above, "/")
}
