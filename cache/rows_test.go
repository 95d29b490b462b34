package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
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

// The tests of this file change states at random and hold every list against all rows.

const rounds = 1000

// TestGoingThroughAllWhileRowsChange: what is there all the time is seen once each time, whatever else comes and goes.
func TestGoingThroughAllWhileRowsChange(t *testing.T) {
	d, _ := filled(t, 200)
	var all sync.WaitGroup
	stop := make(chan struct{})
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			o := wanting("coming", fmt.Sprint("s-coming", i%300))
			name, _ := d.AddPodToVolume(o)
			d.MarkVolumesReportedInUse([]v1.UniqueVolumeName{name, "example.com/any/s7-1"})
			if i%2 == 0 {
				d.DeletePod("coming")
			}
		}
	})
	for range 50 {
		seen := map[string]int{}
		for v := range d.AllVolumesToMount() {
			if v.PodName != "coming" {
				seen[string(v.PodName)+string(v.VolumeName)]++
			}
			if len(seen) == 500 {
				d.DeletePod("coming") // No lock is held.
			}
		}
		require.Len(t, seen, 1000)
		for name, n := range seen {
			require.Equal(t, 1, n, name)
		}
	}
	close(stop)
	all.Wait()
}

func TestTheListsOfTheDesiredState(t *testing.T) {
	d := NewDesiredStateOfWorld(cachetest.NewAnyPlugins(t), Options{})
	random := rand.New(rand.NewPCG(5, 6))
	for range rounds {
		changeDesired(d, random)
		d.verify(t)
	}
	for _, podName := range d.GetPods() {
		d.DeletePod(podName)
	}
	d.verify(t)
	assert.Empty(t, d.volumes)
	assert.Empty(t, d.pods)
}

func someSpec(random *rand.Rand) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: fmt.Sprintf("%c%d", "so"[random.IntN(2)], random.IntN(4))})
}

func somePod(random *rand.Rand) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint("pod", random.IntN(4)))}}
}

func changeDesired(d *DesiredStateOfWorld, random *rand.Rand) {
	spec, pod := someSpec(random), somePod(random)
	podName := volume.GetUniquePodName(pod)
	name, _ := d.plugins.UniqueVolumeName(podName, spec)
	switch random.IntN(8) {
	case 0:
		d.DeletePod(podName)
	case 1, 2:
		d.DeletePodFromVolume(podName, name)
	case 3:
		d.MarkVolumesReportedInUse(slices.DeleteFunc(d.GetVolumeNames(), func(v1.UniqueVolumeName) bool { return random.IntN(2) == 0 }))
	case 4, 5:
		d.RefreshPlugin("example.com/any")
	default:
		outer := fmt.Sprint(spec.Name(), "-", random.IntN(2))
		_, _ = d.AddPodToVolume(AddPodOptions{Pod: pod, VolumeSpec: spec, OuterVolumeSpecName: outer})
	}
}

// verify holds the lists of all pods against those of all volumes, and every query of some volumes against all of them.
func (d *DesiredStateOfWorld) verify(t *testing.T) {
	t.Helper()
	rows := map[*want]bool{}
	for podName, wants := range d.pods {
		require.NotEmpty(t, wants, "no pod without a volume")
		require.True(t, slices.IsSortedFunc(wants, func(a, b *want) int { return a.compareVolume(b.volume.name) }))
		for _, w := range wants {
			require.Equal(t, podName, w.PodName)
			require.Same(t, d.volumes[w.volume.name], w.volume)
			rows[w] = true
		}
	}
	attachable, sum := 0, 0
	for name, v := range d.volumes {
		require.NotEmpty(t, v.pods, "no volume without a pod")
		require.Equal(t, name, v.name)
		require.True(t, slices.IsSortedFunc(v.pods, func(a, b *want) int { return a.comparePod(b.PodName) }))
		for _, w := range v.pods {
			require.True(t, rows[w])
			require.Same(t, v, w.volume)
			require.Equal(t, name, d.GetVolumeNamesForPod(w.PodName)[w.OuterVolumeSpecNames[0]])
		}
		attachable, sum = attachable+one(v.plugin.attachable), sum+len(v.pods)
	}
	require.Len(t, rows, sum)
	require.Len(t, d.GetVolumesToMount(), sum)
	require.Len(t, d.GetAttachableVolumeNames(), attachable)
	require.Len(t, d.GetVolumeNamesOfPlugin("example.com/any"), len(d.volumes))
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func TestTheListsOfTheActualState(t *testing.T) {
	a := NewActualStateOfWorld("node", cachetest.NewAnyPlugins(t), Options{})
	random := rand.New(rand.NewPCG(7, 8))
	for range rounds {
		changeActual(a, random)
		a.verify(t)
	}
	for _, m := range a.GetAllMountedVolumes() {
		require.NoError(t, a.MarkVolumeAsUnmounted(m.PodName, m.VolumeName))
	}
	for _, v := range a.GetAttachedVolumes() {
		require.NoError(t, a.MarkDeviceAsUnmounted(v.VolumeName))
		require.NoError(t, a.DeleteVolume(v.VolumeName))
	}
	a.verify(t)
	assert.Empty(t, a.volumes)
	assert.Empty(t, a.pods)
}

func changeActual(a *ActualStateOfWorld, random *rand.Rand) {
	spec, pod := someSpec(random), somePod(random)
	podName := volume.GetUniquePodName(pod)
	name, _ := a.plugins.UniqueVolumeName(podName, spec)
	path := func(kind string) string { return [...]string{"", "/" + kind + "/1", "/" + kind + "/2"}[random.IntN(3)] }
	opts := operationexecutor.MountedVolume{VolumeName: name, PodName: podName, VolumeSpec: spec, MountPath: path("mnt")}
	switch random.IntN(14) {
	case 0, 1:
		_ = a.MarkVolumeAsAttached(name, spec, "node", path("dev"))
	case 2:
		_ = a.MarkVolumeAsUncertain(name, spec, "node")
	case 3:
		a.MarkVolumeAsDetached(name, "node")
	case 4, 5:
		_ = a.MarkDeviceAsMounted(name, path("dev"), path("stage"), "")
	case 6:
		_ = a.MarkDeviceAsUncertain(name, path("dev"), path("stage"), "")
	case 7:
		_ = a.MarkDeviceAsUnmounted(name)
	case 8, 9:
		_ = a.MarkVolumeAsMounted(opts)
	case 10:
		_ = a.MarkVolumeMountAsUncertain(opts)
	case 11:
		_ = a.MarkVolumeAsUnmounted(podName, name)
	case 12:
		a.MarkRemountRequired(podName)
	default:
		_ = a.AddReconstructedVolume(operationexecutor.AttachedVolume{
			VolumeName: name, VolumeSpec: spec, PluginIsAttachable: random.IntN(2) == 0, DevicePath: path("dev"), DeviceMountPath: path("stage"),
		})
		_, _ = a.AddReconstructedPod(opts)
	}
}

// verify holds the lists of all pods against those of all volumes, and every query of some volumes against all of them.
func (a *ActualStateOfWorld) verify(t *testing.T) {
	t.Helper()
	rows := map[*podMount]bool{}
	for podName, mounts := range a.pods {
		require.NotEmpty(t, mounts, "no pod without a volume")
		require.True(t, slices.IsSortedFunc(mounts, func(a, b *podMount) int { return a.compareVolume(b.volume.name) }))
		for _, m := range mounts {
			require.Equal(t, podName, m.PodName)
			require.Same(t, a.volumes[m.volume.name], m.volume)
			rows[m] = true
		}
	}
	attachable, idle, staged, sum := 0, 0, 0, 0
	for name, v := range a.volumes {
		require.Equal(t, name, v.name)
		require.NotEqual(t, NotAttached, v.attach)
		require.True(t, slices.IsSortedFunc(v.mounts, func(a, b *podMount) int { return a.comparePod(b.PodName) }))
		for _, m := range v.mounts {
			require.True(t, rows[m])
			require.Same(t, v, m.volume)
		}
		attachable, idle = attachable+one(v.plugin.attachable), idle+one(len(v.mounts) == 0)
		staged, sum = staged+one(v.device == operationexecutor.DeviceGloballyMounted), sum+len(v.mounts)
	}
	require.Len(t, rows, sum)
	require.Len(t, a.GetAllMountedVolumes(), sum)
	require.Len(t, a.GetAttachableVolumeNames(), attachable)
	require.Len(t, a.GetUnmountedVolumes(), idle)
	require.Len(t, a.GetGloballyMountedVolumes(), staged)
	require.Len(t, a.GetVolumesOfPlugin("example.com/any"), len(a.volumes))
}
