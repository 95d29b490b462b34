package cache

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// filled returns a desired and an actual state with n pods, each of which has five volumes of its own, all mounted.
func filled(t testing.TB, n int) (*DesiredStateOfWorld, *ActualStateOfWorld) {
	t.Helper()
	plugins := newAnyPlugins(t)
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

func mounting(name v1.UniqueVolumeName, o AddPodOptions) operationexecutor.MarkVolumeOpts {
	return operationexecutor.MarkVolumeOpts{
		VolumeName: name, PodName: volume.GetUniquePodName(o.Pod), PodUID: o.Pod.UID, Pod: o.Pod, VolumeSpec: o.VolumeSpec,
		MountPath: "/mnt/" + o.OuterVolumeSpecName,
	}
}

// TestGoingThroughAllAllocatesNothing holds for all rows and for those of one pod.
func TestGoingThroughAllAllocatesNothing(t *testing.T) {
	d, a := filled(t, 100)
	seen := 0
	for name, loop := range map[string]func(){
		"to mount": func() {
			for v := range d.AllVolumesToMount() {
				seen += len(v.PodName)
			}
		},
		"mounted": func() {
			for m := range a.AllMountedVolumes() {
				seen += len(m.PodName)
			}
		},
		"to mount for a pod": func() {
			for v := range d.VolumesOfPod("pod7") {
				seen += len(v.PodName)
			}
		},
		"mounted for a pod": func() {
			for m := range a.VolumesOfPod("pod7") {
				seen += len(m.PodName)
			}
		},
		"remount": func() { a.MarkRemountRequired("pod7") },
		"exists": func() {
			_, _, err := a.PodExistsInVolume("pod7", "example.com/any/s7-3", v1.ResourceList{}[v1.ResourceStorage], "")
			if err != nil || !d.PodExistsInVolume("pod7", "example.com/any/s7-3") {
				t.Error("not there: ", err)
			}
		},
		"any mounted": func() { _ = a.PodHasMountedVolumes("pod7") },
		"spec name":   func() { _ = d.VolumeExistsWithSpecName("pod7", "s7-3") },
	} {
		assert.Zero(t, testing.AllocsPerRun(20, loop), name)
	}
	assert.Positive(t, seen)
}

// TestAChangeAllocatesAtMostFourTimes, together with the change that undoes it.
func TestAChangeAllocatesAtMostFourTimes(t *testing.T) {
	d, a := filled(t, 10)
	o := wanting("new", "s-new")
	name, err := d.plugins.UniqueVolumeName("", o.VolumeSpec)
	require.NoError(t, err)
	lookUp := testing.AllocsPerRun(20, func() { _, _ = d.plugins.FindPluginBySpec(o.VolumeSpec) })
	opts := mounting(name, o)
	attach := func() {
		if err := a.MarkVolumeAsAttached(name, o.VolumeSpec, "node", "/dev/new"); err != nil {
			t.Error(err)
		}
	}
	for change, f := range map[string]func(){
		"add and delete": func() {
			_, _ = d.AddPodToVolume(o)
			d.DeletePodFromVolume("new", name)
		},
		"attached and detached": func() {
			attach()
			a.MarkVolumeAsDetached(name, "node")
		},
	} {
		assert.LessOrEqual(t, testing.AllocsPerRun(20, f)-lookUp, 4.0, change)
	}
	attach()
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged/new", ""))
	assert.LessOrEqual(t, testing.AllocsPerRun(20, func() {
		_ = a.MarkVolumeAsMounted(opts)
		_ = a.MarkVolumeAsUnmounted("new", name)
	}), 4.0)
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
			func() { _ = a.GetUnmountedVolumes() },
			func() { _ = d.VolumesToMount("example.com/any/s0-0") },
			func() { _, _ = a.Snapshot("example.com/any/s0-0") },
			func() { _ = a.GetUsesOfPath("/dev/s0-0") },
		} {
			costs = append(costs, testing.AllocsPerRun(20, query))
		}
		return costs
	}
	assert.Equal(t, cost(1), cost(300))
}
