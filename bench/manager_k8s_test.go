package bench

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	k8sconfig "k8s.io/kubernetes/pkg/kubelet/config"
	k8smanager "k8s.io/kubernetes/pkg/kubelet/volumemanager"
	k8scache "k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	k8sreconciler "k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler"
	k8svolume "k8s.io/kubernetes/pkg/volume"
	k8svolumetest "k8s.io/kubernetes/pkg/volume/testing"
	k8sutil "k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	k8sexecutor "k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	k8stypes "k8s.io/kubernetes/pkg/volume/util/types"
	mountutils "k8s.io/mount-utils"
)

const (
	// k8sLoopPeriod is how long kubelet's reconciler sleeps.
	k8sLoopPeriod = 100 * time.Millisecond
	k8sPodsDir    = "/nowhere/pods"
)

// k8sManager is kubelet's whole volume manager, whose pods are a list in memory. It attaches by itself.
type k8sManager struct {
	k8smanager.VolumeManager
	tb   testing.TB
	end  context.CancelFunc
	mu   sync.RWMutex
	byID map[types.UID]*v1.Pod
	list []*v1.Pod
}

var _ k8sconfig.SourcesReady = (*k8sManager)(nil)

func newK8sManager(tb testing.TB) *k8sManager {
	m := &k8sManager{tb: tb, byID: map[types.UID]*v1.Pod{}}
	m.VolumeManager = k8smanager.NewVolumeManager(false, "node", m, m, nil, k8sPlugins(tb, &instantK8s{}),
		mountutils.NewFakeMounter(nil), hostutil.NewFakeHostUtil(nil), k8sPodsDir, &record.FakeRecorder{},
		k8svolumetest.NewBlockVolumePathHandler())
	var ctx context.Context
	ctx, m.end = context.WithCancel(tb.Context())
	go m.Run(ctx, m)
	return m
}

func (m *k8sManager) GetPodByUID(id types.UID) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.byID[id]
	return p, ok
}

func (m *k8sManager) GetPods() []*v1.Pod {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.list)
}
func (*k8sManager) ShouldPodContainersBeTerminating(types.UID) bool { return false }
func (*k8sManager) ShouldPodRuntimeBeRemoved(types.UID) bool        { return false }
func (*k8sManager) AddSource(string)                                {}
func (*k8sManager) AllReady() bool                                  { return true }

func (m *k8sManager) add(ps ...*v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range ps {
		m.byID[p.UID] = p
		m.list = append(m.list, p)
	}
}

func (m *k8sManager) wait(p *v1.Pod) error { return m.WaitForAttachAndMount(m.tb.Context(), p) }

// fill waits until all volumes are attached and looks at some of the mounts: the manager looks through all of its volumes
// to answer for one.
func (m *k8sManager) fill(ps []*v1.Pod) {
	m.add(ps...)
	for _, p := range ps {
		for !m.VolumeIsAttached(v1.UniqueVolumeName(instantName + "/" + p.Spec.Volumes[0].Name)) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for i := 0; i < len(ps); i += 1 + len(ps)/16 {
		for len(m.GetMountedVolumesForPod(k8stypes.UniquePodName(ps[i].UID))) != len(ps[i].Spec.Volumes) {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func (m *k8sManager) stop() { m.end() }

// k8sReconciler is the part of it that starts operations, with both states, which are told what is wanted: it has no pods
// to look at.
type k8sReconciler struct {
	tb  testing.TB
	dsw k8scache.DesiredStateOfWorld
	asw *countingStates
	end context.CancelFunc
}

// countingStates tells when so many volumes have been mounted.
type countingStates struct {
	k8scache.ActualStateOfWorld
	left atomic.Int64
	done chan struct{}
}

func (c *countingStates) MarkVolumeAsMounted(o k8sexecutor.MarkVolumeOpts) error {
	err := c.ActualStateOfWorld.MarkVolumeAsMounted(o)
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
	return err
}

func newK8sReconciler(tb testing.TB, plugin k8svolume.VolumePlugin, volumes int) *k8sReconciler {
	plugins := k8sPlugins(tb, plugin)
	r := &k8sReconciler{
		tb: tb, dsw: k8scache.NewDesiredStateOfWorld(plugins, k8sutil.NewSELinuxLabelTranslator()),
		asw: &countingStates{ActualStateOfWorld: k8scache.NewActualStateOfWorld("node", plugins), done: make(chan struct{})},
	}
	r.asw.left.Store(int64(volumes))
	executor := k8sexecutor.NewOperationExecutor(k8sexecutor.NewOperationGenerator(nil, plugins, &record.FakeRecorder{},
		k8svolumetest.NewBlockVolumePathHandler()))
	loop := k8sreconciler.NewReconciler(nil, false, k8sLoopPeriod, time.Minute, "node", r.dsw, r.asw, func() bool { return true },
		executor, mountutils.NewFakeMounter(nil), hostutil.NewFakeHostUtil(nil), plugins, filepath.Clean(k8sPodsDir))
	var ctx context.Context
	ctx, r.end = context.WithCancel(tb.Context())
	go loop.Run(ctx, ctx.Done())
	return r
}

func (r *k8sReconciler) mount(es []entry) {
	for _, e := range es {
		_, err := r.dsw.AddPodToVolume(logger, k8sPodName(e), e.pod, k8svolume.NewSpecFromVolume(e.vol), e.vol.Name, "", nil)
		must(r.tb, err)
	}
	<-r.asw.done
}

func (r *k8sReconciler) unmount(es []entry) {
	for _, e := range es {
		r.dsw.DeletePodFromVolume(k8sPodName(e), e.name)
	}
	for len(r.asw.GetAttachedVolumes()) > 0 {
		time.Sleep(time.Millisecond)
	}
}

func (r *k8sReconciler) stop() { r.end() }
