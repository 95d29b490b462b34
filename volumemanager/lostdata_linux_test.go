package volumemanager

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// deviceNode is a node with a volume on a device of its own, whose image lies on a small filesystem.
type deviceNode struct {
	*watchedNode
	image  string
	device loop.Device
	pod    *v1.Pod
}

func newDeviceNode(t *testing.T) deviceNode {
	t.Helper()
	return newDeviceNodeOf(t, "ext4", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-O", "^has_journal")
}

// newDeviceNodeOf has a filesystem of another type, which is made with options.
func newDeviceNodeOf(t *testing.T, fsType string, options ...string) deviceNode {
	t.Helper()
	mounttest.RequireRoot(t)
	mkfs, err := exec.LookPath("mkfs." + fsType)
	if err != nil {
		t.Skip("missing: mkfs." + fsType)
	}
	n := deviceNode{watchedNode: newWatchedNode(t)}
	store := filepath.Join(t.TempDir(), "store")
	require.NoError(t, n.mounter.Mount(t.Context(), mount.Request{Source: "store", Target: store, FSType: "tmpfs", Options: []string{"size=" + room(fsType)}}))
	t.Cleanup(func() { _ = unix.Unmount(store, unix.MNT_DETACH) })
	n.image = filepath.Join(store, "image")
	require.NoError(t, os.WriteFile(n.image, nil, 0o600))
	require.NoError(t, os.Truncate(n.image, smallest(fsType)))
	out, err := exec.CommandContext(t.Context(), mkfs, append(append([]string{"-q"}, options...), n.image)...).CombinedOutput()
	require.NoError(t, err, string(out))
	loops := loop.New(loop.Options{})
	n.device, err = loops.Attach(t.Context(), n.image, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loops.Detach(context.Background(), n.device)) })
	require.NoError(t, n.plugins.InitPlugins(t.Context(), &bindPlugin{mounter: n.mounter, fsType: fsType}))
	n.pod = podOf("faulty", "-data")
	n.pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: n.device.Path}}
	return n
}

// room is how large the tmpfs is in which the image lies: too small for what tests write to an ext4.
func room(fsType string) string {
	if fsType == "ext4" {
		return "8m"
	}
	return "160m"
}

// smallest is how large an image is at least.
func smallest(fsType string) int64 {
	switch fsType {
	case "xfs":
		return 320 << 20
	case "btrfs":
		return 128 << 20
	}
	return 64 << 20
}

// TestDataThatMayBeLostIsToldOf writes what cannot get to the image, and removes the pod, which succeeds.
func TestDataThatMayBeLostIsToldOf(t *testing.T) {
	for name, fault := range map[string]func(*testing.T, deviceNode){
		"no space below":        func(*testing.T, deviceNode) {},
		"the image is cut":      func(t *testing.T, n deviceNode) { require.NoError(t, os.Truncate(n.image, 0)) },
		"the image has no name": func(t *testing.T, n deviceNode) { require.NoError(t, os.Remove(n.image)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newDeviceNode(t)
			n.run()
			path := n.add(n.pod)
			f, err := os.Create(filepath.Join(path, "f"))
			require.NoError(t, err)
			fault(t, n)
			_, err = f.Write(bytes.Repeat([]byte("precious"), 3<<20))
			require.NoError(t, err, "it is in memory")
			require.NoError(t, f.Close())
			n.remove(n.pod)
			assert.NoDirExists(t, path)
			lost := n.m.Status().LostData
			require.Len(t, lost, 1)
			assert.Equal(t, n.pod.UID, lost[0].PodUID)
			require.Error(t, lost[0].Err)
			assert.Equal(t, 1, n.events.count(health.EventAbnormal))
		})
	}
}

func TestNothingIsToldOfDataThatWasWritten(t *testing.T) {
	n := newDeviceNode(t)
	n.run()
	path := n.add(n.pod)
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), []byte("precious"), 0o600))
	n.remove(n.pod)
	assert.Empty(t, n.m.Status().LostData)
	assert.Zero(t, n.events.count(health.EventAbnormal))
}

// TestFilesystemThatWasShutDownIsNoticed at the next measurement, also where filesystems are not looked at.
func TestFilesystemThatWasShutDownIsNoticed(t *testing.T) {
	n := newDeviceNode(t)
	n.options.FilesystemCheckInterval = -1
	n.run()
	path := n.add(n.pod)
	shutDown(t, path)
	_, err := n.m.WaitForStats(t.Context(), 0)
	require.NoError(t, err)
	s := n.until(n.pod, has(ReasonFilesystemShutDown))
	assert.Equal(t, PhaseMounted, s.Phase)
	n.remove(n.pod)
	assert.NoDirExists(t, path)
}

// TestFilesystemThatWasShutDownIsNoticedWhenAnotherPodIsRefused: the pod that has it is told, too, and no event of the kernel is
// needed for that.
func TestFilesystemThatWasShutDownIsNoticedWhenAnotherPodIsRefused(t *testing.T) {
	mounttest.RequireRoot(t)
	n := newWatchedNode(t)
	plugin := loopblock.New(loopblock.Options{Mounter: n.mounter})
	require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
	claim := claimOfName("disk")
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("32Mi")}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "disk", PVC: claim})
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	objects := store.NewMemory(store.MemoryOptions{})
	claim.Spec.VolumeName, claim.Status.Phase = "disk", v1.ClaimBound
	created, err := objects.Create(t.Context(), claim)
	require.NoError(t, err)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "disk", UID: created.(*v1.PersistentVolumeClaim).UID}
	_, err = objects.Create(t.Context(), pv)
	require.NoError(t, err)
	n.options.Store = objects
	n.run()

	first, second := podOf("first", "disk"), podOf("second", "disk")
	shutDown(t, n.add(first))
	require.NoError(t, n.m.AddPod(t.Context(), second))
	s := n.until(second, func(s VolumeStatus) bool { return errors.Is(s.Err, mount.ErrFilesystemFailed) })
	assert.NotEqual(t, PhaseMounted, s.Phase)
	n.until(first, has(ReasonFilesystemShutDown))
	n.remove(second)
	n.remove(first)
	require.NoError(t, n.m.WaitForNodeEmpty(t.Context()))
}

// shutDown lets the ext4 at path fail from now on.
func shutDown(t *testing.T, path string) {
	t.Helper()
	const extShutdown, noLogFlush = 0x8004587d, 2
	dir, err := os.Open(path)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(dir.Fd()), extShutdown, noLogFlush))
}

// slowSync is a mounter whose SyncFS does not return before its context ends.
type slowSync struct {
	*mount.Mounter
	began chan struct{}
}

func (s slowSync) SyncFS(ctx context.Context, target string) error {
	close(s.began)
	<-ctx.Done()
	return mount.NewAbandonedError("syncfs", target, context.Cause(ctx), ctx.Done())
}

// TestATeardownThatIsCancelledIsNoLoss: the volume stays, with all that was written.
func TestATeardownThatIsCancelledIsNoLoss(t *testing.T) {
	n := newDeviceNode(t)
	slow := slowSync{n.mounter, make(chan struct{})}
	n.options.Mounter = slow
	m, cancel := n.realNode.start(t)
	n.m = m
	m.PodsComplete()
	path := n.add(n.pod)
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), []byte("precious"), 0o600))
	require.NoError(t, m.RemovePod(n.pod.UID))
	<-slow.began
	cancel()
	assert.Empty(t, m.Status().LostData)
	assert.Zero(t, n.events.count(health.EventAbnormal))
	assert.FileExists(t, filepath.Join(path, "f"), "it is still mounted")

	n.options.Mounter = n.mounter
	n.run()
	n.m.PodsComplete()
	require.NoError(t, n.m.WaitForUnmount(t.Context(), n.pod))
	assert.NoDirExists(t, path)
	assert.Empty(t, n.m.Status().LostData)
}
