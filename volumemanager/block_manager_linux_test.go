package volumemanager

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file tests the manager with block volumes on real loop devices, from AddPod to the last trace on disk.

const (
	testPatience = time.Minute
	testBackoff  = time.Millisecond
)

// newManagedBlockNode returns a node whose volume is provisioned and bound to the claim "disk".
func newManagedBlockNode(t *testing.T) (*blockNode, realNode) {
	t.Helper()
	n := newBlockNode(t) // its executor is left alone
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: testNode})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), &faultyPlugin{loopblock.New(loopblock.Options{Loops: n.loops}), n.fault}))
	claims := store.NewMemory(store.MemoryOptions{})
	pv := n.spec.PersistentVolume.DeepCopy()
	claim := claimOfName("disk")
	claim.Spec.VolumeMode, claim.Spec.VolumeName, claim.Status.Phase = pv.Spec.VolumeMode, pv.Name, v1.ClaimBound
	created, err := claims.Create(t.Context(), claim)
	require.NoError(t, err)
	meta, ok := created.(metav1.Object)
	require.True(t, ok)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "disk", UID: meta.GetUID()}
	_, err = claims.Create(t.Context(), pv)
	require.NoError(t, err)
	records := t.TempDir()
	return n, realNode{root: n.root, plugins: plugins, options: Options{
		Store: claims, DeviceUse: n.loops, Mounter: mount.New(mount.Options{}), Resync: -1, WaitTimeout: testPatience,
		RuntimeDir: filepath.Join(records, "run"), StateDir: filepath.Join(records, "state"),
	}}
}

func isDevice(t *testing.T, path string) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st), path)
	assert.Equal(t, uint32(unix.S_IFBLK), st.Mode&unix.S_IFMT, path)
}

func TestManagerMapsRealDevicesKeepsThemOverARestartAndLeavesNothing(t *testing.T) {
	n, node := newManagedBlockNode(t)
	first, second := blockPodOf("first", "disk"), blockPodOf("second", "disk")
	first.UID, second.UID = "first", "second" // those that blockNode knows
	m, stop := node.start(t)
	devicePath := func(m *Manager, pod *v1.Pod) string {
		info := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["disk"]
		require.NotEmpty(t, info.DevicePath)
		isDevice(t, info.DevicePath)
		return info.DevicePath
	}
	for _, pod := range []*v1.Pod{first, second} {
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.Equal(t, n.link(pod), devicePath(m, pod))
	}
	writeDevice(t, devicePath(m, first), "written!")
	assert.Equal(t, "written!", readDevice(t, devicePath(m, second)))
	require.Len(t, n.devices(t.Context()), 1)
	device := n.devices(t.Context())[0]
	stop()
	assert.Equal(t, "written!", readDevice(t, n.link(first)), "the manager is gone, and the device is not")

	m, stop = node.start(t)
	require.NoError(t, m.AddPod(t.Context(), first))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), first))
	isDevice(t, n.link(second)) // not every pod has been added
	m.PodsComplete()
	require.NoError(t, m.WaitForUnmount(t.Context(), second))
	assert.NoDirExists(t, filepath.Join(n.root, "pods", string(second.UID)))
	assert.NoFileExists(t, n.bind(second))
	assert.Equal(t, "written!", readDevice(t, devicePath(m, first)))
	require.Len(t, n.devices(t.Context()), 1)
	assert.Equal(t, device.Path, n.devices(t.Context())[0].Path, "it was not attached anew")

	require.NoError(t, m.RemovePod(first.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	stop()
	n.noTraceIsLeft(node, first)
	assert.Equal(t, "written!", readDevice(t, n.image()))
}

// TestManagerConvergesWhateverFailsOnce: every call of a real block volume's life fails once, before or after its work.
func TestManagerConvergesWhateverFailsOnce(t *testing.T) {
	n, node := newManagedBlockNode(t)
	node.options.BlockMapper = &faultyMapper{NewDeviceMapper(blockmap.New(blockmap.Options{Loops: n.loops})), n.fault}
	node.options.DeviceUse = &faultyUse{n.loops, n.fault}
	node.options.Backoff.Initial = testBackoff
	pod := blockPodOf("first", "disk")
	pod.UID = "first"
	for _, call := range []string{
		"Attach", "WaitForAttach", "ResolveDevice", "MapDevice", "UnmapDevice", "MappedPods", "RemoveMapPath", "DeviceOpened", "Detach",
	} {
		for _, when := range []string{"before", "after"} {
			t.Run(call+" "+when, func(t *testing.T) {
				n.t = t
				n.fault.next = call + " " + when
				m, stop := node.start(t)
				m.PodsComplete()
				require.NoError(t, m.AddPod(t.Context(), pod))
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
				isDevice(t, n.link(pod))
				require.NoError(t, m.RemovePod(pod.UID))
				require.NoError(t, m.WaitForNodeEmpty(t.Context()))
				stop()
				assert.Empty(t, n.fault.next, "it was met")
				n.noTraceIsLeft(node, pod)
			})
		}
	}
	n.t = t
}

// noTraceIsLeft: no device, no bind, no link, no directory of the pod, no record.
func (n *blockNode) noTraceIsLeft(node realNode, pod *v1.Pod) {
	n.t.Helper()
	n.nothingIsLeft()
	assert.Empty(n.t, n.devices(n.t.Context()))
	assert.NoDirExists(n.t, n.mapDir())
	assert.NoDirExists(n.t, filepath.Join(n.root, "pods", string(pod.UID)))
	for _, dir := range []string{node.options.RuntimeDir, node.options.StateDir} {
		assert.Empty(n.t, recordsIn(n.t, dir))
		_, err := os.Stat(dir)
		require.NoError(n.t, err)
	}
}

// giveAnotherFile attaches another file to the loop device at path, if no other program has done that already.
func giveAnotherFile(t *testing.T, n *blockNode, path string) {
	t.Helper()
	other := filepath.Join(t.TempDir(), "other.img")
	require.NoError(t, os.WriteFile(other, make([]byte, 1<<20), 0o600))
	out, err := exec.CommandContext(t.Context(), "losetup", path, other).CombinedOutput()
	if err != nil {
		assert.Contains(t, string(out), "busy", "the device has the file of another program")
		return
	}
	t.Cleanup(func() {
		foreign, err := n.loops.Inspect(context.WithoutCancel(t.Context()), path)
		require.NoError(t, err)
		require.NoError(t, n.loops.Detach(context.WithoutCancel(t.Context()), foreign))
	})
}

// TestAMappedLoopDeviceThatWasDetachedIsMappedAnew: another program has detached its lock and then the device itself, and the
// device of that number has another file now.
func TestAMappedLoopDeviceThatWasDetachedIsMappedAnew(t *testing.T) {
	n, node := newManagedBlockNode(t)
	pod := blockPodOf("first", "disk")
	pod.UID = "first"
	m, stop := node.start(t)
	m.PodsComplete()
	require.NoError(t, m.AddPod(t.Context(), pod))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	writeDevice(t, n.bind(pod), "written!")
	stop()

	for _, lock := range n.locks(t.Context()) {
		require.NoError(t, n.loops.Detach(t.Context(), lock))
	}
	device := n.devices(t.Context())[0]
	require.NoError(t, n.loops.Detach(t.Context(), device))
	giveAnotherFile(t, n, device.Path)

	m, stop = node.start(t)
	defer stop()
	require.NoError(t, m.AddPod(t.Context(), pod))
	m.PodsComplete()
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	assert.Equal(t, "written!", readDevice(t, n.bind(pod)))
	require.NoError(t, m.RemovePod(pod.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	n.nothingIsLeft()
}
