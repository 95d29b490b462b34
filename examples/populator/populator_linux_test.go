package populator

import (
	"archive/tar"
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// node is a process with the controller of claims and a manager for populators. Its objects are on disk.
type node struct {
	objects *store.Disk
	fills   Filesystems
	events  fake.Recorder
	stop    func()
}

func startNode(t *testing.T, dir string, archive Archive) *node {
	t.Helper()
	n := &node{}
	var err error
	n.objects, err = store.OpenDisk(filepath.Join(dir, "objects"), store.DiskOptions{})
	require.NoError(t, err)
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(dir, "node"), NodeName: "node-1"})
	require.NoError(t, err)
	mounter := mount.New(mount.Options{})
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), loopblock.New(loopblock.Options{Mounter: mounter})))
	private := store.NewMemory(store.MemoryOptions{})
	manager, err := volumemanager.New(plugins, volumemanager.Options{
		Store: private, Mounter: mounter, DeviceUse: loop.DeviceUse{},
		RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"),
	})
	require.NoError(t, err)
	n.fills = Filesystems{Manager: manager, Objects: private, Mounter: mounter}
	claims := persistentvolume.New(plugins, n.objects, persistentvolume.Options{
		NodeName: "node-1", Mounts: manager, Events: &n.events, InitialBackoff: 10 * time.Millisecond, Filesystems: n.fills,
		Populators: map[schema.GroupKind]persistentvolume.Populator{{Group: "example.com", Kind: "Archive"}: Archives{
			Find: func(context.Context, string, string) (Archive, error) { return archive, nil },
		}},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var managing, controlling sync.WaitGroup
	managing.Go(func() { assert.NoError(t, manager.Run(ctx)) })
	manager.PodsComplete()
	controlled, end := context.WithCancel(ctx)
	controlling.Go(func() { assert.NoError(t, claims.Run(controlled)) })
	n.stop = func() { end(); controlling.Wait(); cancel(); managing.Wait(); assert.NoError(t, n.objects.Close()) }
	return n
}

func (n *node) claim(t *testing.T) *v1.PersistentVolumeClaim {
	t.Helper()
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), n.objects, "default", "data")
	require.NoError(t, err)
	return claim
}

func (n *node) create(t *testing.T) {
	t.Helper()
	class, group := "loop", "example.com"
	_, err := store.Create(t.Context(), n.objects, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: loopblock.Name})
	require.NoError(t, err)
	_, err = store.Create(t.Context(), n.objects, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:     v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}},
			DataSourceRef: &v1.TypedObjectReference{APIGroup: &group, Kind: "Archive", Name: "a"},
		},
	})
	require.NoError(t, err)
}

const (
	childDir     = "VOLUMEKIT_POPULATOR_DIR"
	childArchive = "VOLUMEKIT_POPULATOR_ARCHIVE"
)

// TestFillUntilKilled is the process that TestAKilledFillingStartsOver kills.
func TestFillUntilKilled(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		return // It is run by the other test.
	}
	n := startNode(t, dir, described(os.Getenv(childArchive), bigArchive(t)))
	n.create(t)
	select {}
}

func bigArchive(t *testing.T) []byte {
	t.Helper()
	return packed(t,
		entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "first"}, content: strings.Repeat("a", 8<<20)},
		entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "second"}, content: strings.Repeat("b", 8<<20)},
	)
}

// requireHalfFilled fails unless the process has left a volume that is mounted, and that its record does not call full.
func requireHalfFilled(t *testing.T, dir string) {
	t.Helper()
	objects, err := store.OpenDisk(filepath.Join(dir, "objects"), store.DiskOptions{})
	require.NoError(t, err)
	volumes, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), objects, "")
	require.NoError(t, err)
	require.Len(t, volumes, 1)
	assert.NotEmpty(t, volumes[0].Annotations["volumekit.io/populating"])
	assert.Empty(t, volumes[0].Annotations["volumekit.io/populated"])
	require.NoError(t, objects.Close())
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.Contains(t, string(mounts), dir)
}

func TestAKilledFillingStartsOver(t *testing.T) {
	mounttest.RequireRoot(t)
	content := bigArchive(t)
	dir := t.TempDir()
	half, killed := make(chan struct{}), make(chan struct{})
	var asked sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stall := false
		asked.Do(func() { stall = true })
		if !stall {
			_, _ = w.Write(content)
			return
		}
		_, _ = w.Write(content[:len(content)/2])
		http.NewResponseController(w).Flush()
		close(half)
		<-killed
	}))
	defer server.Close()

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFillUntilKilled$")
	child.Env = append(os.Environ(), childDir+"="+dir, childArchive+"="+server.URL)
	var output bytes.Buffer
	child.Stdout, child.Stderr = &output, &output
	require.NoError(t, child.Start())
	select {
	case <-half:
	case <-time.After(time.Minute):
	}
	require.NoError(t, child.Process.Signal(syscall.SIGKILL))
	_ = child.Wait()
	close(killed)
	requireHalfFilled(t, dir)

	n := startNode(t, dir, described(server.URL, content))
	defer n.stop()
	require.Eventually(t, func() bool { return n.claim(t).Status.Phase == v1.ClaimBound }, time.Minute, 10*time.Millisecond, output.String())
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), n.objects, "", n.claim(t).Spec.VolumeName)
	require.NoError(t, err)
	assert.Equal(t, "sha256:"+described("", content).SHA256, pv.Annotations["volumekit.io/populated"])
	require.NoError(t, n.fills.Manager.WaitForNodeEmpty(t.Context()))

	require.NoError(t, n.fills.read(t.Context(), pv, func(dir string) {
		for name, letter := range map[string]string{"first": "a", "second": "b"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			assert.Equal(t, strings.Repeat(letter, 8<<20), string(got))
		}
	}))
	claim := n.claim(t)
	require.NoError(t, store.Delete(t.Context(), n.objects, claim))
	require.Eventually(t, func() bool {
		left, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), n.objects, "")
		return err == nil && len(left) == 0
	}, time.Minute, 10*time.Millisecond)
}

// read mounts a volume that is full as Fill does, and empties nothing.
func (f Filesystems) read(ctx context.Context, pv *v1.PersistentVolume, look func(dir string)) error {
	pod, err := f.bind(ctx, pv)
	if err != nil {
		return err
	}
	if err := f.Manager.AddPod(ctx, pod); err != nil {
		return err
	}
	if err := f.Manager.WaitForAttachAndMount(ctx, pod); err != nil {
		return err
	}
	volumes, err := f.Manager.ContainerMounts(ctx, pod, volumeName)
	if err != nil {
		return err
	}
	look(volumes.Mounts[0].Source)
	return f.Release(ctx, pv)
}
