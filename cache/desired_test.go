package cache_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/volume"
)

func newDesired(t *testing.T, p *cachetest.Plugin) (*cache.DesiredStateOfWorld, *changes) {
	told := &changes{}
	return cache.NewDesiredStateOfWorld(cachetest.NewPlugins(t, p), told.options()), told
}

func add(t *testing.T, d *cache.DesiredStateOfWorld, podName, inner, outer string) v1.UniqueVolumeName {
	t.Helper()
	name, err := d.AddPodToVolume(cache.AddPodOptions{Pod: cachetest.Pod(podName), VolumeSpec: cachetest.Spec(inner), OuterVolumeSpecName: outer})
	require.NoError(t, err)
	return name
}

func TestPodsShareWhatIsAttachedOrStagedAndNothingElse(t *testing.T) {
	d, _ := newDesired(t, &cachetest.Plugin{})
	assert.Equal(t, cachetest.Shared("s1"), add(t, d, "p", "s1", "data"))
	assert.Equal(t, cachetest.Shared("s1"), add(t, d, "q", "s1", "data"))
	assert.Equal(t, cachetest.Shared("pods/p/own"), add(t, d, "p", "own", "tmp"))
	assert.Equal(t, cachetest.Shared("pods/q/own"), add(t, d, "q", "own", "tmp"))
	rows := d.VolumesToMount(cachetest.Shared("s1"))
	require.Len(t, rows, 2)
	assert.True(t, rows[0].PluginIsAttachable)
	assert.True(t, rows[0].PluginIsDeviceMountable)
	row, ok := d.VolumeToMount(cachetest.Shared("pods/p/own"), "p")
	require.True(t, ok)
	assert.False(t, row.PluginIsAttachable)
	assert.Equal(t, cachetest.PluginName, row.PluginName)
	assert.Equal(t, map[string]v1.UniqueVolumeName{"data": cachetest.Shared("s1"), "tmp": cachetest.Shared("pods/p/own")}, d.GetVolumeNamesForPod("p"))
	assert.Len(t, d.GetVolumesToMount(), 4)
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("pods/p/own"), cachetest.Shared("pods/q/own"), cachetest.Shared("s1")}, d.GetVolumeNames())
	assert.Equal(t, []volume.UniquePodName{"p", "q"}, d.GetPods())
}

func TestOneClaimUnderSeveralNamesOfAPod(t *testing.T) {
	d, told := newDesired(t, &cachetest.Plugin{})
	name := add(t, d, "p", "s1", "b")
	before, _ := d.VolumeToMount(name, "p")
	add(t, d, "p", "s1", "a")
	add(t, d, "p", "s1", "b")
	after, _ := d.VolumeToMount(name, "p")
	assert.Equal(t, []string{"a", "b"}, after.OuterVolumeSpecNames)
	assert.Equal(t, []string{"b"}, before.OuterVolumeSpecNames, "a row never changes after it was returned")
	told.take()
	d.DeletePodFromVolume("p", name)
	assert.Equal(t, []v1.UniqueVolumeName{name}, told.take())
	assert.Empty(t, d.GetVolumeNamesForPod("p"))
	assert.False(t, d.VolumeExists(name))
	d.DeletePodFromVolume("p", name)
	assert.Empty(t, told.take())
}

func TestPodAndSpecAreReplacedAndTheFirstRequestCounts(t *testing.T) {
	for _, remount := range []bool{false, true} {
		t.Run(fmt.Sprint("remount ", remount), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDesired(t, &cachetest.Plugin{Remount: remount})
				first := time.Now()
				name := add(t, d, "p", "s1", "data")
				time.Sleep(time.Minute)
				updated := cachetest.Pod("p")
				updated.Labels = map[string]string{"generation": "2"}
				_, err := d.AddPodToVolume(cache.AddPodOptions{Pod: updated, VolumeSpec: cachetest.Spec("s1"), OuterVolumeSpecName: "data"})
				require.NoError(t, err)
				row, _ := d.VolumeToMount(name, "p")
				assert.Same(t, updated, row.Pod)
				if remount {
					first = time.Now()
				}
				assert.Equal(t, first, row.MountRequestTime)
			})
		})
	}
}

func TestNamesThatBecomePathsAreChecked(t *testing.T) {
	d, told := newDesired(t, &cachetest.Plugin{})
	for _, o := range []cache.AddPodOptions{
		{Pod: cachetest.Pod(".."), VolumeSpec: cachetest.Spec("s1"), OuterVolumeSpecName: "data"},
		{Pod: cachetest.Pod(""), VolumeSpec: cachetest.Spec("s1"), OuterVolumeSpecName: "data"},
		{Pod: cachetest.Pod("p"), VolumeSpec: cachetest.Spec("../s1"), OuterVolumeSpecName: "data"},
		{Pod: cachetest.Pod("p"), VolumeSpec: cachetest.Spec("s1")},
		{Pod: cachetest.Pod("p"), OuterVolumeSpecName: "data"},
		{VolumeSpec: cachetest.Spec("s1"), OuterVolumeSpecName: "data"},
	} {
		_, err := d.AddPodToVolume(o)
		require.ErrorIs(t, err, volume.ErrInvalid)
	}
	_, err := d.AddPodToVolume(cache.AddPodOptions{
		Pod: cachetest.Pod("p"), VolumeSpec: volume.NewSpecFromVolume(&v1.Volume{Name: "x"}), OuterVolumeSpecName: "data",
	})
	require.ErrorIs(t, err, volume.ErrNoPlugin)
	assert.Empty(t, d.GetPods())
	assert.Empty(t, told.take())
}

func TestAnOuterNameKeepsItsVolume(t *testing.T) {
	d, _ := newDesired(t, &cachetest.Plugin{})
	name := add(t, d, "p", "s1", "data")
	_, err := d.AddPodToVolume(cache.AddPodOptions{Pod: cachetest.Pod("p"), VolumeSpec: cachetest.Spec("s2"), OuterVolumeSpecName: "data"})
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.Equal(t, map[string]v1.UniqueVolumeName{"data": name}, d.GetVolumeNamesForPod("p"))
	assert.False(t, d.VolumeExists(cachetest.Shared("s2")))
}

func TestDeletePodTakesEverythingOfIt(t *testing.T) {
	d, told := newDesired(t, &cachetest.Plugin{})
	add(t, d, "p", "s1", "data")
	add(t, d, "p", "own", "tmp")
	add(t, d, "q", "s1", "data")
	told.take()
	want := []v1.UniqueVolumeName{cachetest.Shared("pods/p/own"), cachetest.Shared("s1")}
	assert.Equal(t, want, d.DeletePod("p"))
	assert.Equal(t, want, told.take())
	assert.Equal(t, []volume.UniquePodName{"q"}, d.GetPods())
	assert.True(t, d.VolumeExists(cachetest.Shared("s1")))
	assert.Empty(t, d.DeletePod("p"))
}

func TestReportedInUseIsSetAndReset(t *testing.T) {
	d, told := newDesired(t, &cachetest.Plugin{})
	a, b := add(t, d, "p", "s1", "a"), add(t, d, "p", "s2", "b")
	reported := func(name v1.UniqueVolumeName) bool {
		row, _ := d.VolumeToMount(name, "p")
		return row.ReportedInUse
	}
	told.take()
	d.MarkVolumesReportedInUse([]v1.UniqueVolumeName{a, "unknown"})
	assert.True(t, reported(a))
	assert.False(t, reported(b))
	assert.Equal(t, []v1.UniqueVolumeName{a}, told.take())
	d.MarkVolumesReportedInUse([]v1.UniqueVolumeName{b})
	assert.False(t, reported(a))
	assert.True(t, reported(b))
	assert.Equal(t, []v1.UniqueVolumeName{a, b}, told.take())
	d.MarkVolumesReportedInUse([]v1.UniqueVolumeName{b})
	assert.Empty(t, told.take())
}

func TestPluginsAreAskedOutsideOfTheLock(t *testing.T) {
	p := &cachetest.Plugin{}
	told := &changes{}
	plugins := cachetest.NewPlugins(t, p)
	d := cache.NewDesiredStateOfWorld(plugins, told.options())
	a := cache.NewActualStateOfWorld(node, plugins, told.options())
	p.OnCanSupport = func() {
		d.DeletePod("other")
		_ = a.DeleteVolume("other")
	}
	name := add(t, d, "p", "s1", "data")
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged", ""))
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	a.MarkRemountRequired("p")
}

// TestTheHookMayUseTheState deadlocks when it is called with the lock held.
func TestTheHookMayUseTheState(t *testing.T) {
	var d *cache.DesiredStateOfWorld
	seen := 0
	d = cache.NewDesiredStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{}), cache.Options{Changed: func(name v1.UniqueVolumeName) {
		seen += len(d.VolumesToMount(name))
	}})
	add(t, d, "p", "s1", "data")
	d.DeletePod("p")
	assert.Equal(t, 1, seen)
}

func TestTheDesiredStateIsUsedByManyAtOnce(t *testing.T) {
	d := cache.NewDesiredStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{}), cache.Options{})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			name := fmt.Sprint("p", i)
			for range 50 {
				_, _ = d.AddPodToVolume(cache.AddPodOptions{Pod: cachetest.Pod(name), VolumeSpec: cachetest.Spec("s1"), OuterVolumeSpecName: "data"})
				rows := d.VolumesToMount(cachetest.Shared("s1"))
				for _, row := range rows {
					_ = len(row.OuterVolumeSpecNames)
				}
				d.DeletePod(volume.UniquePodName(name))
			}
		})
	}
	all.Wait()
	assert.Empty(t, d.GetVolumeNames())
}

func TestTheVolumesOfAPersistentVolume(t *testing.T) {
	d := cache.NewDesiredStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{Any: true}), cache.Options{})
	own := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "own"}}, false)
	for _, podName := range []string{"q", "p"} {
		_, err := d.AddPodToVolume(cache.AddPodOptions{Pod: cachetest.Pod(podName), VolumeSpec: own, OuterVolumeSpecName: "data"})
		require.NoError(t, err)
		add(t, d, podName, "other", "more")
	}
	names := d.GetVolumeNamesOfPersistentVolume("own")
	require.Len(t, names, 2, "each pod has one of its own")
	assert.Less(t, names[0], names[1])
	assert.Empty(t, d.GetVolumeNamesOfPersistentVolume("other"))
}
