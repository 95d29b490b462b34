package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
)

const (
	testRoot   = "/var/lib/agent"
	testNode   = types.NodeName("node-1")
	testDriver = "fake.example.com"
)

// world is one node: what outlives a manager, and the manager that runs.
type world struct {
	t       *testing.T
	mounter *fake.Mounter
	backend *fake.Backend
	plugin  *fake.Plugin
	plugins *volume.VolumePluginMgr
	store   *store.Memory
	blocks  *fakeBlocks
	without volume.Capabilities // of the plugin
	reuse   bool                // of the plugin, which then asks for no remounts
	options Options
	// wrapStore is put around the store of the manager, unless it is nil.
	wrapStore func(store.Store) store.Store

	manager *Manager
	stop    func() error
}

// newWorld returns a node on which nothing is mounted. The resync is off: everything has to come by events.
func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{t: t, mounter: fake.NewMounter(fake.MounterOptions{}), backend: fake.NewBackend(), store: store.NewMemory(store.MemoryOptions{})}
	if o.Resync == 0 {
		o.Resync = -1
	}
	o.NoRecords = o.RuntimeDir == "" // what is mounted ends with the test
	w.blocks = &fakeBlocks{binds: make(map[string]string)}
	o.Store, o.BlockMapper = w.store, w.blocks
	w.options = o
	w.options.NoMountChecks = true // A poll of the kernel would stop the clock of a bubble.
	return w
}

// start makes a new process of the node's agent: new plugins, a new manager, the same world.
func (w *world) start() *Manager {
	w.t.Helper()
	w.prepare()
	w.run()
	return w.manager
}

// prepare makes a manager without running it.
func (w *world) prepare() *Manager {
	w.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: testRoot, NodeName: testNode})
	require.NoError(w.t, err)
	w.plugin = fake.NewPlugin(fake.PluginOptions{Mounter: w.mounter, Backend: w.backend, Remount: !w.reuse, Reuse: w.reuse, Without: w.without})
	w.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(w.t, w.plugins.InitPlugins(w.t.Context(), w.plugin))
	w.options.Mounter, w.options.NoMountChecks = w.mounter, false
	if w.wrapStore != nil {
		w.options.Store = w.wrapStore(w.store)
	}
	w.manager, err = New(w.plugins, w.options)
	require.NoError(w.t, err)
	if w.manager.journal != nil {
		w.manager.journal.Disk.OpenDir = openUnsynced
	}
	return w.manager
}

// openUnsynced opens a directory of records whose writes are not synced: they outlive the process, which is all that ends
// here, and no test waits for the disk. That they are durable otherwise is for package record to prove.
func openUnsynced(path string, o record.Options) (journal.Dir, error) {
	o.Sync = false
	return journal.OpenDir(path, o)
}

// run runs the manager until stop, or the end of the test.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	m := w.manager
	go func() { ended <- m.Run(ctx) }()
	stopped := false
	w.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(24 * time.Hour): // of the bubble
			return errors.New("Run has not returned a day after its context ended")
		}
	}
	w.t.Cleanup(func() { _ = w.stop() })
	synctest.Wait()
}

// blockClaim is claim for a block volume.
func (w *world) blockClaim(name string, change ...func(*v1.PersistentVolume)) {
	w.t.Helper()
	mode := v1.PersistentVolumeBlock
	pvc := claimOfName(name)
	pvc.Spec.VolumeMode = &mode
	w.bindClaim(pvc, append(change, func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &mode })...)
}

// claim binds a claim to a new PersistentVolume.
func (w *world) claim(name string, change ...func(*v1.PersistentVolume)) {
	w.t.Helper()
	w.bindClaim(claimOfName(name), change...)
}

func (w *world) bindClaim(pvc *v1.PersistentVolumeClaim, change ...func(*v1.PersistentVolume)) {
	w.t.Helper()
	name := pvc.Name
	pvc = w.create(pvc).(*v1.PersistentVolumeClaim)
	w.create(volumeOfClaim(pvc, change...))
	w.bind(name)
}

func claimOfName(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}},
	}
}

func volumeOfClaim(pvc *v1.PersistentVolumeClaim, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + pvc.Name}}
	pv.Spec.AccessModes = pvc.Spec.AccessModes
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "disk-" + pvc.Name}
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID}
	for _, f := range change {
		f(pv)
	}
	return pv
}

// bind does what the controller does last.
func (w *world) bind(name string) {
	w.t.Helper()
	w.changeClaim(name, func(pvc *v1.PersistentVolumeClaim) {
		pvc.Spec.VolumeName, pvc.Status.Phase = "pv-"+name, v1.ClaimBound
	})
}

func (w *world) changeClaim(name string, change func(*v1.PersistentVolumeClaim)) {
	w.t.Helper()
	for {
		pvc, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", name)
		require.NoError(w.t, err)
		change(pvc)
		_, err = w.store.Update(w.t.Context(), pvc)
		if !errors.Is(err, store.ErrConflict) { // The manager may have written it, too.
			require.NoError(w.t, err)
			return
		}
	}
}

func (w *world) create(obj runtime.Object) runtime.Object {
	w.t.Helper()
	if pv, ok := obj.(*v1.PersistentVolume); ok {
		_ = w.backend.Create(pv.Spec.CSI.VolumeHandle, 1<<30)
	}
	created, err := w.store.Create(w.t.Context(), obj)
	require.NoError(w.t, err)
	return created
}

// podOf returns a pod whose container mounts each volume. "claim" is a claim of that name, "claim:ro" the same read-only,
// "-name" a volume of the pod's own.
func podOf(name string, volumes ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c := v1.Container{Name: "main"}
	for _, spec := range volumes {
		vol := v1.Volume{Name: strings.TrimPrefix(strings.TrimSuffix(spec, ":ro"), "-")}
		if strings.HasPrefix(spec, "-") {
			vol.CSI = &v1.CSIVolumeSource{Driver: testDriver}
		} else {
			vol.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: vol.Name, ReadOnly: strings.HasSuffix(spec, ":ro")}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, vol)
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: vol.Name, MountPath: "/" + vol.Name})
	}
	pod.Spec.Containers = []v1.Container{c}
	return pod
}

// asDevice makes the container of a pod use all of its volumes as devices.
func asDevice(pod *v1.Pod) {
	c := &pod.Spec.Containers[0]
	for _, m := range c.VolumeMounts {
		c.VolumeDevices = append(c.VolumeDevices, v1.VolumeDevice{Name: m.Name, DevicePath: "/dev" + m.MountPath})
	}
	c.VolumeMounts = nil
}

// blockPodOf is podOf for volumes that the container uses as devices.
func blockPodOf(name string, volumes ...string) *v1.Pod {
	pod := podOf(name, volumes...)
	asDevice(pod)
	return pod
}

// add adds a pod and waits until its volumes are ready.
func (w *world) add(pod *v1.Pod) {
	w.t.Helper()
	require.NoError(w.t, w.manager.AddPod(w.t.Context(), pod))
	require.NoError(w.t, w.manager.WaitForAttachAndMount(w.t.Context(), pod))
}

// remove removes a pod and waits until its volumes are gone from it.
func (w *world) remove(pod *v1.Pod) {
	w.t.Helper()
	require.NoError(w.t, w.manager.RemovePod(pod.UID))
	require.NoError(w.t, w.manager.WaitForUnmount(w.t.Context(), pod))
}

// mounts returns what is mounted beneath the node's root, sorted.
func (w *world) mounts() []string {
	w.t.Helper()
	table, err := w.mounter.List(w.t.Context())
	require.NoError(w.t, err)
	var paths []string
	for _, mp := range table {
		if path, ok := strings.CutPrefix(mp.Path, testRoot); ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// isClean proves that nothing is mounted, attached or recorded.
func (w *world) isClean() {
	w.t.Helper()
	require.NoError(w.t, w.manager.WaitForNodeEmpty(w.t.Context()))
	synctest.Wait()
	require.Empty(w.t, w.mounts())
	require.Empty(w.t, w.blocks.mapped())
	for _, handle := range w.backend.Handles() {
		require.Empty(w.t, w.backend.Nodes(handle), handle)
	}
	require.Empty(w.t, w.records())
}

// changes returns the calls of the plugin that change the world, in order.
func (w *world) changes() []string {
	var calls []string
	for _, c := range w.plugin.Calls() {
		switch c.Method {
		case fake.MethodAttach, fake.MethodDetach, fake.MethodMountDevice, fake.MethodUnmountDevice, fake.MethodSetUp, fake.MethodTearDown:
			line := string(c.Method)
			if c.Pod != "" {
				line += fmt.Sprintf(" %s", c.Pod)
			}
			calls = append(calls, line)
		default:
		}
	}
	return calls
}

// inBubble runs a test in a bubble whose time moves when everybody waits.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// pass lets time pass, and everything settle.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func ptr[T any](v T) *T { return &v }
