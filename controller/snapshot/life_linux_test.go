package snapshot

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// machine is a node with loop-block, its manager and the two controllers.
type machine struct {
	t       *testing.T
	store   store.Store
	plugin  *loopblock.Plugin
	manager *volumemanager.Manager
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	mounttest.RequireRoot(t)
	root := filepath.Join(t.TempDir(), "node")
	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node-1"})
	require.NoError(t, err)
	kinds, err := store.NewKindTable(Kinds()...)
	require.NoError(t, err)
	mounter := mount.New(mount.Options{})
	m := &machine{t: t, store: store.NewMemory(store.MemoryOptions{Kinds: kinds}), plugin: loopblock.New(loopblock.Options{Mounter: mounter})}
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), m.plugin))
	m.manager, err = volumemanager.New(plugins, volumemanager.Options{
		Store: m.store, Mounter: mounter, RuntimeDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state"),
	})
	require.NoError(t, err)
	snapshots := New(plugins, m.store, Options{})
	claims := persistentvolume.New(plugins, m.store, persistentvolume.Options{NodeName: "node-1", Mounts: m.manager, Snapshots: snapshots})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 3)
	for _, run := range []func(context.Context) error{snapshots.Run, claims.Run, m.manager.Run} {
		go func() { ended <- run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range 3 {
			assert.NoError(t, <-ended)
		}
	})
	m.manager.PodsComplete()
	for _, class := range []store.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "loop"}, Provisioner: loopblock.Name},
		newClass("loop", isDefault, func(c *snapshotv1.VolumeSnapshotClass) { c.Driver = loopblock.Name }),
	} {
		m.create(class)
	}
	return m
}

func (m *machine) create(obj store.Object) {
	m.t.Helper()
	_, err := m.store.Create(m.t.Context(), obj)
	require.NoError(m.t, err)
}

// start gives a claim to a pod, and returns the directory of its files.
func (m *machine) start(claim string) (pod *v1.Pod, dir string) {
	m.t.Helper()
	pod = &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "uses-" + claim, UID: types.UID("uid-" + claim)},
		Spec: v1.PodSpec{
			NodeName:   "node-1",
			Containers: []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	m.create(pod.DeepCopy())
	require.NoError(m.t, m.manager.AddPod(m.t.Context(), pod))
	require.NoError(m.t, m.manager.WaitForAttachAndMount(m.t.Context(), pod))
	use, err := m.manager.ContainerMounts(m.t.Context(), pod, "main")
	require.NoError(m.t, err)
	return pod, use.Mounts[0].Source
}

func (m *machine) stop(pod *v1.Pod) {
	m.t.Helper()
	require.NoError(m.t, m.manager.RemovePod(pod.UID))
	require.NoError(m.t, m.manager.WaitForUnmount(m.t.Context(), pod))
	require.NoError(m.t, m.store.Delete(m.t.Context(), store.Key{Kind: store.Pods, Namespace: "default", Name: pod.Name}, store.Preconditions{}))
}

func save(t *testing.T, path, content string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	_, err = file.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
}

// A pod writes and syncs data, a snapshot is made while the pod runs, and the pod writes more. In a second pod, a claim that is
// restored from the snapshot has the data of that moment. After everything is deleted, nothing is left.
func TestASnapshotOfARunningPodIsRestored(t *testing.T) {
	m := newMachine(t)
	claim := restoring("data", "")
	claim.Spec.DataSource = nil
	claim.Spec.StorageClassName = new("loop")
	claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("32Mi")
	m.create(claim)
	pod, dir := m.start("data")
	save(t, filepath.Join(dir, "file"), "before")

	m.create(newSnapshot("s", "data", ""))
	require.NoError(t, store.WaitForNone(t.Context(), m.store, func(s *snapshotv1.VolumeSnapshot) bool { return isUnfinished(s) }))
	save(t, filepath.Join(dir, "file"), "after")

	restored := restoring("restored", "s")
	restored.Spec.StorageClassName = new("loop")
	restored.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("32Mi")
	m.create(restored)
	other, otherDir := m.start("restored")
	content, err := os.ReadFile(filepath.Join(otherDir, "file"))
	require.NoError(t, err)
	assert.Equal(t, "before", string(content))
	content, err = os.ReadFile(filepath.Join(dir, "file"))
	require.NoError(t, err)
	assert.Equal(t, "after", string(content))

	m.stop(other)
	m.stop(pod)
	for _, key := range []store.Key{
		{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: "data"},
		{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: "restored"},
		{Kind: snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot"), Namespace: "default", Name: "s"},
	} {
		require.NoError(t, m.store.Delete(t.Context(), key, store.Preconditions{}))
	}
	require.NoError(t, store.WaitForNone(t.Context(), m.store, func(*v1.PersistentVolume) bool { return true }))
	require.NoError(t, store.WaitForNone(t.Context(), m.store, func(*snapshotv1.VolumeSnapshot) bool { return true }))
	require.NoError(t, store.WaitForNone(t.Context(), m.store, func(*snapshotv1.VolumeSnapshotContent) bool { return true }))
	left, err := m.plugin.ListSnapshots(t.Context())
	require.NoError(t, err)
	assert.Empty(t, left)
}
