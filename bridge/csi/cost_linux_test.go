package csi_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// fakeWord is the argument with which the test binary serves the fake driver and runs no tests.
const fakeWord = "serve-fake"

// What the fake driver does when it publishes.
const (
	makesDirectories = "directories" // makes a directory at the target, without a mount
	mounts           = "mounts"      // makes a bind mount
)

// serveFake serves the fake driver, with many volumes, until SIGTERM.
func serveFake(dir, does string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	options := fakedriver.Options{
		Dir: filepath.Join(dir, "storage"), Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
	}
	if does == makesDirectories {
		options.Bug = fakedriver.NeverMounts
	}
	if err := os.MkdirAll(options.Dir, 0o755); err != nil {
		return err
	}
	d := fakedriver.New(options)
	for i := range many {
		if _, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: fmt.Sprint("v", i), VolumeCapabilities: []*csi.VolumeCapability{costCapability},
		}); err != nil {
			return err
		}
	}
	end, err := d.Serve(socketOf(dir))
	if err != nil {
		return err
	}
	<-ctx.Done()
	end()
	return nil
}

// many is the number of volumes in the largest measurement.
const many = 1000

var costCapability = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
}

// startFake starts the fake driver in a process of its own.
func startFake(b *testing.B, does string) string {
	b.Helper()
	dir, _ := startServing(b, fakeWord, does)
	return dir
}

// startServing starts this binary with the arguments word and what. It returns the directory of its socket, and its process id.
func startServing(b *testing.B, word, what string) (dir string, pid int) {
	b.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // The path of a socket must be short.
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, os.RemoveAll(dir)) })
	command := exec.CommandContext(context.WithoutCancel(b.Context()), "/proc/self/exe", word, dir, what)
	command.Stderr = os.Stderr
	require.NoError(b, command.Start())
	b.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM) // Wait reports a process that has ended by itself.
		require.NoError(b, command.Wait())
	})
	for {
		if _, err := os.Stat(socketOf(dir)); err == nil {
			return dir, command.Process.Pid
		}
		time.Sleep(time.Millisecond)
	}
}

// node gives a volume to each of a number of pods, and takes it away.
type node interface {
	up(ctx context.Context, pods int) error
	down(ctx context.Context, pods int) error
}

// bare makes the calls of the driver, several at once, and does no other work.
type bare struct {
	dir    string
	client csi.NodeClient
}

func newBare(b *testing.B, dir string) node {
	b.Helper()
	conn, err := grpc.NewClient("unix:"+socketOf(dir), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()) })
	return &bare{dir: dir, client: csi.NewNodeClient(conn)}
}

func (n *bare) target(i int) string {
	return filepath.Join(n.dir, "bare", fmt.Sprint("p", i), "volume")
}

// each calls do once for each pod, from 32 goroutines.
func each(pods int, do func(i int) error) error {
	const workers = 32
	var all sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		all.Go(func() {
			for i := w; i < pods; i += workers {
				errs[w] = errors.Join(errs[w], do(i))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (n *bare) up(ctx context.Context, pods int) error {
	return each(pods, func(i int) error {
		if err := os.MkdirAll(filepath.Dir(n.target(i)), 0o750); err != nil {
			return err
		}
		_, err := n.client.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: fmt.Sprint("vol-v", i), TargetPath: n.target(i), VolumeCapability: costCapability,
		})
		return err
	})
}

func (n *bare) down(ctx context.Context, pods int) error {
	return each(pods, func(i int) error {
		_, err := n.client.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: fmt.Sprint("vol-v", i), TargetPath: n.target(i)})
		return err
	})
}

// managed is a volume manager over the driver.
type managed struct{ manager *volumemanager.Manager }

// directories is a mounter that reports every existing path as a mount point.
type directories struct{ mount.Interface }

func (directories) IsMountPoint(_ context.Context, path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func newManaged(b *testing.B, dir, does string) node {
	b.Helper()
	mounter := mount.New(mount.Options{})
	options := csidriver.Options{Socket: socketOf(dir), Driver: fakedriver.Name, Mounter: mounter}
	if does == makesDirectories {
		options.Mounter = directories{mounter}
	}
	driver, err := csidriver.New(options)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, driver.Close()) })
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(dir, "root"), NodeName: "node-1"})
	require.NoError(b, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(b, plugins.InitPlugins(b.Context(), driver.Plugin()))
	s := store.NewMemory(store.MemoryOptions{})
	for i := range many {
		createVolume(b, s, i)
	}
	o := volumemanager.Options{Store: s, RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state")}
	if does == mounts {
		o.Mounter = mounter
	} else {
		o.NoMountChecks = true // The driver mounts nothing.
	}
	m, err := volumemanager.New(plugins, o)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	b.Cleanup(func() { cancel(); require.NoError(b, <-ended) })
	m.PodsComplete()
	return &managed{m}
}

// createVolume creates a claim and the PersistentVolume that is bound to it.
func createVolume(b *testing.B, s store.Store, i int) {
	b.Helper()
	name, class := fmt.Sprint("v", i), ""
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	claim, err := store.Create(b.Context(), s, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name},
		Spec:       v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: modes, VolumeName: name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	})
	require.NoError(b, err)
	_, err = store.Create(b.Context(), s, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: v1.NamespaceDefault, Name: name, UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: fakedriver.Name, VolumeHandle: "vol-" + name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	})
	require.NoError(b, err)
}

func costPod(i int) *v1.Pod {
	name := fmt.Sprint("p", i)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("v", i)},
			}}},
		},
	}
}

func (n *managed) up(ctx context.Context, pods int) error {
	for i := range pods {
		if err := n.manager.AddPod(ctx, costPod(i)); err != nil {
			return err
		}
	}
	for i := range pods {
		if err := n.manager.WaitForAttachAndMount(ctx, costPod(i)); err != nil {
			return err
		}
	}
	return nil
}

func (n *managed) down(ctx context.Context, pods int) error {
	for i := range pods {
		if err := n.manager.RemovePod(costPod(i).UID); err != nil {
			return err
		}
	}
	return n.manager.WaitForNodeEmpty(ctx)
}

// usage returns the processor time and the number of allocations of this process, without the driver's process.
func usage(b *testing.B) (time.Duration, uint64) {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), m.Mallocs
}

// residentBytes returns the resident memory of a process.
func residentBytes(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	_, after, found := strings.Cut(string(text), "VmRSS:")
	require.True(b, found)
	var kilobytes float64
	_, err = fmt.Sscan(after, &kilobytes)
	require.NoError(b, err)
	return kilobytes * 1024
}

// BenchmarkCSI measures what volumes of a CSI driver in another process cost a node: per volume, from the pod to the mount and back.
// It compares a bare client with a volume manager. docs/benchmarks.md has the results.
func BenchmarkCSI(b *testing.B) {
	mounttest.RequireMounts(b)
	for _, does := range []string{makesDirectories, mounts} {
		for _, pods := range []int{1, many} {
			for _, kind := range []string{"bare", "manager"} {
				b.Run(fmt.Sprintf("driver=%s/pods=%d/%s", does, pods, kind), func(b *testing.B) {
					dir := startFake(b, does)
					n := newBare(b, dir)
					if kind == "manager" {
						n = newManaged(b, dir, does)
					}
					measure(b, n, pods)
				})
			}
		}
	}
}

func measure(b *testing.B, n node, pods int) {
	b.Helper()
	// The first round makes what later rounds reuse: it is not measured.
	require.NoError(b, errors.Join(n.up(b.Context(), pods), n.down(b.Context(), pods)))
	var ready, gone time.Duration
	time0, mallocs0 := usage(b)
	for b.Loop() {
		begun := time.Now()
		require.NoError(b, n.up(b.Context(), pods))
		ready += time.Since(begun)
		begun = time.Now()
		require.NoError(b, n.down(b.Context(), pods))
		gone += time.Since(begun)
	}
	time1, mallocs1 := usage(b)
	volumes := float64(b.N * pods)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ready.Seconds()*1e3/float64(b.N), "ms-ready")
	b.ReportMetric(gone.Seconds()*1e3/float64(b.N), "ms-gone")
	b.ReportMetric(float64((time1-time0).Microseconds())/volumes, "cpu-µs/volume")
	b.ReportMetric(float64(mallocs1-mallocs0)/volumes, "allocs/volume")
	require.NoError(b, n.up(b.Context(), pods))
	b.ReportMetric(residentBytes(b, os.Getpid())/1e6, "MB-resident")
	idle0, _ := usage(b)
	time.Sleep(time.Second)
	idle1, _ := usage(b)
	b.ReportMetric(float64((idle1-idle0).Microseconds())/1e3, "ms-cpu/s-idle")
	require.NoError(b, n.down(b.Context(), pods))
}

// BenchmarkCSIServer measures the memory of a process that serves a plugin: without volumes, and with many published ones.
func BenchmarkCSIServer(b *testing.B) {
	mounttest.RequireRoot(b)
	dir, pid := startServing(b, serveWord, hostPaths)
	conn, err := grpc.NewClient("unix:"+socketOf(dir), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()) })
	controller, node := csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	target := func(i int) string { return filepath.Join(dir, "targets", fmt.Sprint(i)) }
	require.NoError(b, os.Mkdir(filepath.Join(dir, "targets"), 0o750))
	capability := &csi.VolumeCapability{
		AccessType: costCapability.GetAccessType(),
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	for b.Loop() {
		before := residentBytes(b, pid)
		require.NoError(b, each(many, func(i int) error {
			made, err := controller.CreateVolume(b.Context(), &csi.CreateVolumeRequest{
				Name: fmt.Sprint("v", i), VolumeCapabilities: []*csi.VolumeCapability{capability},
			})
			if err != nil {
				return err
			}
			_, err = node.NodePublishVolume(b.Context(), &csi.NodePublishVolumeRequest{
				VolumeId: made.GetVolume().GetVolumeId(), TargetPath: target(i), VolumeCapability: capability,
				VolumeContext: made.GetVolume().GetVolumeContext(),
			})
			return err
		}))
		b.ReportMetric(before/1e6, "MB-without")
		b.ReportMetric(residentBytes(b, pid)/1e6, "MB-published")
		require.NoError(b, each(many, func(i int) error {
			id := fmt.Sprint("v", i)
			_, err := node.NodeUnpublishVolume(b.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target(i)})
			if err != nil {
				return err
			}
			_, err = controller.DeleteVolume(b.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		}))
	}
	b.ReportMetric(0, "ns/op")
}
