package recycler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// template is a pod whose container empties /scrub.
func template() v1.Pod {
	return v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system"},
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{{Name: "volume"}},
			Containers: []v1.Container{{
				Name: "scrub", Command: []string{"find", "/scrub", "-xdev", "-mindepth", "1", "-delete"},
				VolumeMounts: []v1.VolumeMount{{Name: "volume", MountPath: "/scrub"}},
			}},
		},
	}
}

// processes is a runtime whose containers are processes of the machine that see a volume where it is and not at its mount path.
// Each run takes the next fault, if there is one, in place of the process.
type processes struct {
	mu     sync.Mutex
	ran    int
	faults []func(ctx context.Context) error
}

func (p *processes) Run(ctx context.Context, container v1.Container, volumes volumemanager.ContainerVolumes) error {
	p.mu.Lock()
	p.ran++
	var fault func(context.Context) error
	if len(p.faults) > 0 {
		fault, p.faults = p.faults[0], p.faults[1:]
	}
	p.mu.Unlock()
	if fault != nil {
		return fault(ctx)
	}
	args := append([]string{}, container.Command...)
	for _, m := range volumes.Mounts {
		for i := range args {
			if args[i] == m.Target {
				args[i] = m.Source
			}
		}
	}
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (p *processes) runs() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ran
}

// node is a node with one controller, one volume of the kind that is recycled, and the recycler.
type node struct {
	t         *testing.T
	base      string
	objects   *store.Memory
	processes *processes
	recycler  *Recycler
	plugin    *hostpath.Plugin
	events    fake.Recorder
}

func newNode(t *testing.T) *node {
	t.Helper()
	mounttest.RequireMounts(t) // where a mistake can remove nothing of the machine
	dir := t.TempDir()
	n := &node{t: t, base: filepath.Join(dir, "volumes"), objects: store.NewMemory(store.MemoryOptions{}), processes: &processes{}}
	require.NoError(t, os.MkdirAll(filepath.Join(n.base, "data"), 0o755))
	n.recycler = New(Options{Store: n.objects, Runtime: n.processes, Template: template()})
	n.plugin = hostpath.New(hostpath.Options{BaseDir: n.base, Recycler: n.recycler})
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(dir, "node"), NodeName: "node-1"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), n.plugin))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Store: n.objects, Mounter: mount.New(mount.Options{})})
	require.NoError(t, err)
	n.recycler.Use(manager)
	claims := persistentvolume.New(plugins, n.objects, persistentvolume.Options{
		NodeName: "node-1", Mounts: manager, Events: &n.events, InitialBackoff: 10 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{manager.Run, claims.Run} {
		running.Go(func() { assert.NoError(t, run(ctx)) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	manager.PodsComplete()
	return n
}

// file is a file of the volume.
func (n *node) file() string { return filepath.Join(n.base, "data", "file") }

// fill writes to the volume.
func (n *node) fill() {
	n.t.Helper()
	require.NoError(n.t, os.MkdirAll(filepath.Join(n.base, "data", "a", "b"), 0o755))
	require.NoError(n.t, os.WriteFile(n.file(), []byte("of the claim before"), 0o600))
}

func (n *node) spec() *volume.Spec {
	kind := v1.HostPathDirectory
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRecycle,
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{
				Path: filepath.Join(n.base, "data"), Type: &kind,
			}},
		},
	}, false)
}

func (n *node) recycle(ctx context.Context) error {
	return n.plugin.Recycle(ctx, "data", n.spec(), func(string, string) {})
}

// noPod fails when a pod is left.
func (n *node) noPod() {
	n.t.Helper()
	pods, _, err := store.ListOf[*v1.Pod](n.t.Context(), n.objects, metav1.NamespaceAll)
	require.NoError(n.t, err)
	assert.Empty(n.t, pods)
}

// bind makes a claim and waits until it has the volume.
func (n *node) bind(name string) *v1.PersistentVolumeClaim {
	n.t.Helper()
	noClass := ""
	claim, err := store.Create(n.t.Context(), n.objects, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &noClass,
			Resources: v1.VolumeResourceRequirements{Requests: n.spec().PersistentVolume.Spec.Capacity},
		},
	})
	require.NoError(n.t, err)
	require.Eventually(n.t, func() bool {
		claim, err = store.Get[*v1.PersistentVolumeClaim](n.t.Context(), n.objects, "default", name)
		return err == nil && claim.Status.Phase == v1.ClaimBound
	}, time.Minute, 5*time.Millisecond)
	return claim
}

// A volume goes from one claim to the next: the controller recycles it when the first is deleted, the plugin has the pod do
// it, and the second finds it empty. The first pod fails, which counts for nothing.
func TestAVolumeIsRecycledByAPodBetweenTwoClaims(t *testing.T) {
	n := newNode(t)
	n.processes.faults = []func(context.Context) error{func(context.Context) error { return errors.New("exit status 1") }}
	_, err := store.Create(t.Context(), n.objects, n.spec().PersistentVolume)
	require.NoError(t, err)
	first := n.bind("first")
	n.fill()
	require.NoError(t, store.Delete(t.Context(), n.objects, first))
	n.bind("second")
	assert.NoFileExists(t, n.file())
	left, err := os.ReadDir(filepath.Join(n.base, "data"))
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, 2, n.processes.runs())
	n.noPod()
	var told []string
	for _, event := range n.events.Events() {
		told = append(told, event.Reason+": "+event.Message)
	}
	assert.Contains(t, told, "VolumeRecycled: pod kube-system/recycler-for-data recycles the volume")
	assert.Contains(t, fmt.Sprint(told), `VolumeFailedRecycle: volume "data" is not recycled`)
}

func TestAPodThatFailsOrTakesTooLongIsAnError(t *testing.T) {
	n := newNode(t)
	n.fill()
	failed := errors.New("exit status 1")
	ctx, cancel := context.WithCancel(t.Context())
	hang := func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() } // its time is over once it runs
	n.processes.faults = []func(context.Context) error{func(context.Context) error { return failed }, hang}
	require.ErrorIs(t, n.recycle(t.Context()), failed)
	n.noPod()
	require.ErrorIs(t, n.recycle(ctx), context.Canceled)
	n.noPod()
	assert.FileExists(t, n.file())
	require.NoError(t, n.recycle(t.Context()))
	assert.NoFileExists(t, n.file())
}

// A pod that was left by a process which was killed may have succeeded, and yet before the volume was written to again.
func TestAPodOfAnEarlierProcessNeverCounts(t *testing.T) {
	n := newNode(t)
	n.fill()
	earlier := n.recycler.podFor(volume.PodRecycleRequest{PVName: "data", Volume: v1.VolumeSource{HostPath: n.spec().PersistentVolume.Spec.HostPath}})
	earlier.Status.Phase = v1.PodSucceeded
	_, err := store.Create(t.Context(), n.objects, earlier)
	require.NoError(t, err)
	require.NoError(t, n.recycle(t.Context()))
	assert.NoFileExists(t, n.file())
	assert.Equal(t, 1, n.processes.runs())
	n.noPod()
}

func TestAForeignPodStays(t *testing.T) {
	n := newNode(t)
	n.fill()
	other := template()
	other.Name = "recycler-for-data"
	_, err := store.Create(t.Context(), n.objects, &other)
	require.NoError(t, err)
	require.ErrorIs(t, n.recycle(t.Context()), store.ErrConflict)
	_, err = store.Get[*v1.Pod](t.Context(), n.objects, other.Namespace, other.Name)
	require.NoError(t, err)
	assert.FileExists(t, n.file())
	assert.Zero(t, n.processes.runs())
}
