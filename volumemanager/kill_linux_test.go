package volumemanager

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// childNode says to a process of this test to be the manager of the node below a directory, until it is killed.
const childNode = "VOLUMEKIT_VOLUMEMANAGER_TEST_NODE"

func TestMain(m *testing.M) {
	faultrun.Main()
	if order := os.Getenv(childCosts); order != "" {
		if err := beCounted(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if root := os.Getenv(childNode); root != "" {
		fmt.Fprintln(os.Stderr, beManager(root))
		os.Exit(1)
	}
	mounttest.Main(m)
}

// realNodeAt returns a node of tmpfs volumes below a directory.
func realNodeAt(ctx context.Context, root string) (realNode, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(root, "lib"), NodeName: testNode})
	if err != nil {
		return realNode{}, err
	}
	mounter := mount.New(mount.Options{})
	plugins := volume.NewVolumePluginMgr(host)
	err = plugins.InitPlugins(ctx, &tmpfsPlugin{mounter: mounter})
	return realNode{root: root, plugins: plugins, options: Options{
		RuntimeDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state"), Resync: -1, WaitTimeout: 20 * time.Second,
		Mounter: mounter,
	}}, err
}

const manyPods = 50

// somePods are pods of which the name of one begins that of others.
func somePods() []*v1.Pod {
	var pods []*v1.Pod
	for i := range manyPods {
		pods = append(pods, emptyDirPod("p"+strconv.Itoa(i)))
	}
	return pods
}

// beManager adds all pods at once, and tells of each step of an operation.
func beManager(root string) error {
	ctx := context.Background()
	n, err := realNodeAt(ctx, root)
	if err != nil {
		return err
	}
	n.options.Observer = teller{}
	m, err := New(n.plugins, n.options)
	if err != nil {
		return err
	}
	for _, pod := range somePods() {
		if err := m.AddPod(ctx, pod); err != nil {
			return err
		}
	}
	return m.Run(ctx)
}

type teller struct{}

func (teller) OperationStarted(operationexecutor.OperationInfo) {}
func (teller) OperationStepped(operationexecutor.OperationInfo, operationexecutor.Step) {
	fmt.Println("step")
}
func (teller) OperationFinished(operationexecutor.OperationInfo, operationexecutor.Result) {}

// TestKilledWhileManyMountsAreUnderWay is row 9 of the fault matrix: whatever was under way is known afterwards, uncertain, and
// comes to its end, one way or the other.
func TestKilledWhileManyMountsAreUnderWay(t *testing.T) {
	mounttest.RequireMounts(t)
	for _, steps := range []int{1, 80, 120} {
		n, err := realNodeAt(t.Context(), t.TempDir())
		require.NoError(t, err)
		killManagerAfter(t, n.root, steps)
		mounted := n.mounted(t)

		m, stop := n.start(t)
		looked(t, m)
		assert.Empty(t, m.Status().Orphans, "every mount is on record")
		known := map[string]struct{}{}
		for _, v := range m.Status().Volumes {
			assert.Equal(t, PhaseUncertain, v.Phase)
			known[v.Path] = struct{}{}
		}
		for _, path := range mounted {
			assert.Contains(t, known, path)
		}
		var kept []string
		for i, pod := range somePods() {
			if i%2 == 0 {
				require.NoError(t, m.AddPod(t.Context(), pod))
				kept = append(kept, n.pathOf(pod))
			}
		}
		m.PodsComplete()
		for i, pod := range somePods() {
			if i%2 == 0 {
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			} else {
				require.NoError(t, m.WaitForUnmount(t.Context(), pod))
			}
		}
		slices.Sort(kept)
		assert.Equal(t, kept, n.mounted(t))
		for _, pod := range somePods() {
			require.NoError(t, m.RemovePod(pod.UID))
		}
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		assert.Empty(t, n.mounted(t))
		stop()
		assert.Empty(t, recordsIn(t, n.options.RuntimeDir))
		t.Logf("killed after %d steps, with %d mounts and %d volumes on record", steps, len(mounted), len(known))
	}
}

// killManagerAfter runs a manager in a process of its own and kills it when it has told of so many steps.
func killManagerAfter(t *testing.T, root string, steps int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childNode+"="+root)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for range steps {
		require.True(t, lines.Scan(), "%v", lines.Err())
	}
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait(), "it was killed")
}

// mounted returns what is mounted below the root of the volumes, sorted.
func (n realNode) mounted(t *testing.T) []string {
	t.Helper()
	table, err := mount.New(mount.Options{}).List(t.Context())
	require.NoError(t, err)
	var paths []string
	for _, mp := range table {
		if rel, err := filepath.Rel(n.plugins.Host().GetPodsDir(), mp.Path); err == nil && filepath.IsLocal(rel) {
			paths = append(paths, mp.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

// TestNodeWithAStrangeName is row 59 of the fault matrix: the names of pods and volumes are checked, but a program may choose
// any name for the root. The root's name is the same after the mount table and the records were written and read.
func TestNodeWithAStrangeName(t *testing.T) {
	mounttest.RequireMounts(t)
	for _, name := range []string{"a b", "a\nb", `a\040b`, "a (deleted)", "-rf", "#x,y=z", "é\u202e", string(make255())} {
		n, err := realNodeAt(t.Context(), filepath.Join(t.TempDir(), name))
		require.NoError(t, err, "%q", name)
		one, ten := emptyDirPod("p1"), emptyDirPod("p10")
		n.leave(t, one, ten)
		require.Equal(t, []string{n.pathOf(one), n.pathOf(ten)}, n.mounted(t), "%q", name)
		before := idAt(t, n.pathOf(ten))

		m, stop := n.start(t)
		looked(t, m)
		assert.Empty(t, m.Status().Damaged, "%q", name)
		assert.Empty(t, m.Status().Orphans, "%q", name)
		require.NoError(t, m.AddPod(t.Context(), ten))
		m.PodsComplete()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), ten))
		require.NoError(t, m.WaitForUnmount(t.Context(), one), "%q", name)
		assert.NoDirExists(t, filepath.Join(n.plugins.Host().GetPodsDir(), string(one.UID)))
		assert.Equal(t, before, idAt(t, n.pathOf(ten)), "%q: the pod whose name begins with that of the other keeps its mount", name)
		require.NoError(t, m.RemovePod(ten.UID))
		require.NoError(t, m.WaitForNodeEmpty(t.Context()), "%q", name)
		stop()
		assert.Empty(t, n.mounted(t))
	}
}

func TestNodeWithANameThatRecordsCannotSayIsRefused(t *testing.T) {
	_, err := realNodeAt(t.Context(), "/a/\xff\xfe")
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func make255() []byte { return slices.Repeat([]byte("x"), 255) }
