package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// This file tests block volumes on real loop devices: the executor, the cache, the port and the plugin together.

// blockNode is a node with one block volume.
type blockNode struct {
	t        *testing.T
	root     string
	fault    *fault
	loops    *loop.Manager
	mounter  *mount.Mounter
	actual   *cache.ActualStateOfWorld
	executor *operationexecutor.Executor
	spec     *volume.Spec
	name     v1.UniqueVolumeName
}

// newBlockNode returns a node whose volume is provisioned.
func newBlockNode(t *testing.T) *blockNode {
	t.Helper()
	mounttest.RequireRoot(t)
	n := &blockNode{
		t: t, root: filepath.Join(t.TempDir(), "node"), fault: &fault{},
		loops: loop.New(loop.Options{}), mounter: mount.New(mount.Options{}),
		name: volume.GetUniqueVolumeName(loopblock.Name, "disk"),
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: testNode})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	plugin := loopblock.New(loopblock.Options{Loops: n.loops})
	require.NoError(t, plugins.InitPlugins(t.Context(), &faultyPlugin{plugin, n.fault}))
	n.actual = cache.NewActualStateOfWorld(testNode, plugins, cache.Options{})
	mounter := &faultyMounter{n.mounter, n.fault}
	t.Cleanup(func() { mounter.Interface = nil }) // The executor's timers outlive the test, and would keep what it keeps open.
	mapper := blockmap.New(blockmap.Options{Mounter: mounter, Loops: n.loops})
	n.executor = operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{
			Plugins: plugins, DeviceUse: &faultyUse{n.loops, n.fault}, Mounts: mounter,
			BlockMapper: &faultyMapper{NewDeviceMapper(mapper), n.fault},
		}), operationexecutor.ExecutorOptions{})
	n.provision(plugin)
	return n
}

func (n *blockNode) provision(plugin *loopblock.Plugin) {
	claim, mode := claimOfName("disk"), v1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &mode
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "disk", PVC: claim})
	require.NoError(n.t, err)
	pv, err := provisioner.Provision(n.t.Context(), nil, nil)
	require.NoError(n.t, err)
	n.spec = volume.NewSpecFromPersistentVolume(pv, false)
	n.t.Cleanup(n.takeAwayByForce)
}

// takeAwayByForce is for a test that failed midway. It touches nothing but what is below root.
func (n *blockNode) takeAwayByForce() {
	ctx := context.WithoutCancel(n.t.Context())
	for _, pod := range blockPods() {
		_ = mount.UnmountPath(ctx, n.mounter, n.bind(pod), mount.UnmountOptions{})
	}
	for _, d := range append(n.locks(ctx), n.devices(ctx)...) {
		_ = n.loops.Detach(ctx, d)
	}
}

func blockPods() []*v1.Pod {
	var pods []*v1.Pod
	for _, name := range []string{"first", "second"} {
		pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}})
	}
	return pods
}

func (n *blockNode) mapDir() string {
	return filepath.Join(n.root, "plugins", loopblock.Name, "volumeDevices/disk")
}

func (n *blockNode) bind(pod *v1.Pod) string { return filepath.Join(n.mapDir(), string(pod.UID)) }

func (n *blockNode) link(pod *v1.Pod) string {
	return filepath.Join(n.root, "pods", string(pod.UID), "volumeDevices/volumekit.io~loop-block/disk")
}

func (n *blockNode) image() string {
	return filepath.Join(n.root, "plugins", loopblock.Name, "images/disk.img")
}

// devices returns the loop devices of the image; it is one or none.
func (n *blockNode) devices(ctx context.Context) []loop.Device {
	return n.loopsThat(ctx, func(d loop.Device) bool { return d.BackingPath == n.image() })
}

// locks returns the loop devices over the device of the image.
func (n *blockNode) locks(ctx context.Context) []loop.Device {
	var locks []loop.Device
	for _, device := range n.devices(ctx) {
		locks = append(locks, n.loopsThat(ctx, func(d loop.Device) bool {
			return d.BackingRdev == unix.Mkdev(device.Major, device.Minor)
		})...)
	}
	return locks
}

func (n *blockNode) loopsThat(ctx context.Context, is func(loop.Device) bool) []loop.Device {
	all, err := n.loops.Devices(ctx)
	require.NoError(n.t, err)
	var found []loop.Device
	for _, d := range all {
		if is(d) {
			found = append(found, d)
		}
	}
	return found
}

func (n *blockNode) attached() (operationexecutor.AttachedVolume, bool) {
	v, known := n.actual.GetAttachedVolume(n.name)
	return v.AttachedVolume, known
}

func (n *blockNode) state(pod *v1.Pod) operationexecutor.VolumeMountState {
	return n.actual.GetVolumeMountState(n.name, volume.UniquePodName(pod.UID))
}

// end waits for an operation and forgets its back-off.
func (n *blockNode) end(op *operationexecutor.Operation, err error) error {
	n.t.Helper()
	require.NoError(n.t, err)
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	select {
	case <-op.Done():
	case <-ctx.Done():
		require.Fail(n.t, "the operation does not end")
	}
	n.executor.Forget(n.name)
	return op.Err()
}

func (n *blockNode) attach() error {
	return n.end(n.executor.AttachVolume(n.t.Context(), operationexecutor.VolumeToAttach{
		VolumeName: n.name, VolumeSpec: n.spec, NodeName: testNode,
	}, n.actual))
}

func (n *blockNode) mapFor(pod *v1.Pod) error {
	known, _ := n.attached()
	return n.end(n.executor.MountVolume(n.t.Context(), operationexecutor.VolumeToMount{
		VolumeName: n.name, PodName: volume.UniquePodName(pod.UID), VolumeSpec: n.spec, Pod: pod,
		PluginName: loopblock.Name, PluginIsAttachable: true, DevicePath: known.DevicePath,
	}, operationexecutor.MountOptions{}, n.actual))
}

func (n *blockNode) unmap(pod *v1.Pod) error {
	v, known := n.actual.GetMountedVolume(n.name, volume.UniquePodName(pod.UID))
	require.True(n.t, known)
	return n.end(n.executor.UnmountVolume(n.t.Context(), v.MountedVolume, n.actual))
}

func (n *blockNode) unmapDevice() error {
	v, known := n.attached()
	require.True(n.t, known)
	return n.end(n.executor.UnmountDevice(n.t.Context(), v, n.actual))
}

func (n *blockNode) detach() error {
	v, known := n.attached()
	require.True(n.t, known)
	return n.end(n.executor.DetachVolume(n.t.Context(), v, operationexecutor.DetachOptions{}, n.actual))
}

// attempts is how often a step may fail when one call fails once.
const attempts = 3

// until repeats a step until it succeeds, and looks after each failure whether the state is true to the world.
func (n *blockNode) until(step func() error) {
	n.t.Helper()
	var err error
	patience := time.Now().Add(testPatience)
	for tries := 0; tries < attempts; {
		if err = step(); err == nil {
			return
		}
		if errors.Is(err, volume.ErrInUse) && !errors.Is(err, errFault) && time.Now().Before(patience) {
			goruntime.Gosched() // Another process on this machine has the device open for a moment.
			continue
		}
		require.ErrorIs(n.t, err, errFault, "nothing fails but what was made to")
		n.stateIsTrue()
		tries++
	}
	require.NoError(n.t, err, "it does not converge")
}

// takeAway takes away all that the state knows of.
func (n *blockNode) takeAway() {
	n.t.Helper()
	for _, pod := range blockPods() {
		if n.state(pod) != operationexecutor.VolumeNotMounted {
			n.until(func() error { return n.unmap(pod) })
		}
	}
	if n.actual.GetDeviceMountState(n.name) != operationexecutor.DeviceNotMounted {
		n.until(n.unmapDevice)
	}
	if _, known := n.attached(); known {
		n.until(n.detach)
	}
	n.nothingIsLeft()
}

// stateIsTrue: what is believed to be there is there, and what is believed not to be there is not.
func (n *blockNode) stateIsTrue() {
	n.t.Helper()
	for _, pod := range blockPods() {
		switch n.state(pod) {
		case operationexecutor.VolumeNotMounted:
			assert.NoFileExists(n.t, n.bind(pod))
			_, err := os.Lstat(n.link(pod))
			require.ErrorIs(n.t, err, os.ErrNotExist)
		case operationexecutor.VolumeMounted:
			var st unix.Stat_t
			require.NoError(n.t, unix.Stat(n.link(pod), &st))
			assert.Equal(n.t, uint32(unix.S_IFBLK), st.Mode&unix.S_IFMT)
		}
	}
	if n.actual.GetDeviceMountState(n.name) == operationexecutor.DeviceNotMounted {
		assert.NoDirExists(n.t, n.mapDir())
		assert.Empty(n.t, n.locks(n.t.Context()))
	}
	if _, known := n.attached(); !known {
		assert.Empty(n.t, n.devices(n.t.Context()))
	}
}

// nothingIsLeft: no bind, no link, no loop device, no lock, no directory of the volume.
func (n *blockNode) nothingIsLeft() {
	n.t.Helper()
	n.stateIsTrue()
	_, known := n.attached()
	assert.False(n.t, known)
	table, err := n.mounter.List(n.t.Context())
	require.NoError(n.t, err)
	for _, m := range table {
		assert.NotContains(n.t, m.Path, n.root)
	}
	entries, err := os.ReadDir(filepath.Dir(n.mapDir()))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(n.t, err)
	}
	assert.Empty(n.t, entries)
}
