package cache

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// filled returns a desired and an actual state with n pods, each of which has five volumes of its own, all mounted.
func filled(t testing.TB, n int) (*DesiredStateOfWorld, *ActualStateOfWorld) {
	t.Helper()
	plugins := cachetest.NewAnyPlugins(t)
	d, a := NewDesiredStateOfWorld(plugins, Options{}), NewActualStateOfWorld("node", plugins, Options{})
	for i := range n {
		for j := range 5 {
			mountOne(t, d, a, fmt.Sprint("pod", i), fmt.Sprintf("s%d-%d", i, j))
		}
	}
	return d, a
}

func mountOne(t testing.TB, d *DesiredStateOfWorld, a *ActualStateOfWorld, podName, volumeName string) {
	t.Helper()
	o := wanting(podName, volumeName)
	name, err := d.AddPodToVolume(o)
	require.NoError(t, err)
	require.NoError(t, a.MarkVolumeAsAttached(name, o.VolumeSpec, "node", "/dev/"+volumeName))
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged/"+volumeName, ""))
	require.NoError(t, a.MarkVolumeAsMounted(mounting(name, o)))
}

func wanting(podName, volumeName string) AddPodOptions {
	return AddPodOptions{
		Pod:                 &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(podName)}},
		VolumeSpec:          volume.NewSpecFromVolume(&v1.Volume{Name: volumeName}),
		OuterVolumeSpecName: volumeName,
	}
}

func mounting(name v1.UniqueVolumeName, o AddPodOptions) operationexecutor.MountedVolume {
	return operationexecutor.MountedVolume{
		VolumeName: name, PodName: volume.GetUniquePodName(o.Pod), PodUID: o.Pod.UID, Pod: o.Pod, VolumeSpec: o.VolumeSpec,
		MountPath: "/mnt/" + o.OuterVolumeSpecName,
	}
}

// TestTheCostOfAPodDoesNotGrowWithTheNode counts what a query looks at by what it allocates and returns: it is the same
// on a node with one pod and on one with three hundred.
func TestTheCostOfAPodDoesNotGrowWithTheNode(t *testing.T) {
	cost := func(pods int) []float64 {
		d, a := filled(t, pods)
		var costs []float64
		for _, query := range []func(){
			func() { _ = d.GetVolumeNamesForPod("pod0") },
			func() { _ = a.GetMountedVolumesForPod("pod0") },
			func() { _ = a.GetPossiblyMountedVolumesForPod("pod0") },
			func() { _ = d.VolumesToMount("example.com/any/s0-0") },
			func() { _, _ = a.Snapshot("example.com/any/s0-0") },
			func() { _, _ = a.GetMountedVolume("example.com/any/s0-0", "pod0") },
		} {
			costs = append(costs, testing.AllocsPerRun(20, query))
		}
		return costs
	}
	assert.Equal(t, cost(1), cost(300))
}

// TestTheCostOfAPodDoesNotGrowWithThePodsOfItsVolume counts the bytes that it takes that one more pod wants and has a volume,
// and no longer does.
func TestTheCostOfAPodDoesNotGrowWithThePodsOfItsVolume(t *testing.T) {
	cost := func(pods int) uint64 {
		plugins := cachetest.NewAnyPlugins(t)
		d, a := NewDesiredStateOfWorld(plugins, Options{}), NewActualStateOfWorld("node", plugins, Options{})
		for i := range pods {
			mountOne(t, d, a, fmt.Sprint("pod", i), "s")
		}
		comeAndGo := func() {
			mountOne(t, d, a, "new", "s")
			_, _ = d.VolumeToMount("example.com/any/s", "new")
			_, _ = a.GetMountedVolume("example.com/any/s", "new")
			d.DeletePod("new")
			require.NoError(t, a.MarkVolumeAsUnmounted("new", "example.com/any/s"))
		}
		comeAndGo() // The lists may grow once.
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 50 {
			comeAndGo()
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	assert.Less(t, cost(2000), 2*cost(10))
}
