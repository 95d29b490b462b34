package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// The tests of this file change states at random and hold every index against a plain look at all rows.

const rounds = 1000

func TestRosterAgainstASlice(t *testing.T) {
	var r roster[int]
	seats := make([]seat[int], 8)
	var model []int
	for i := range seats {
		seats[i].member = i
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		i := random.IntN(len(seats))
		if random.IntN(2) == 0 {
			r.join(&seats[i])
			if !slices.Contains(model, i) {
				model = append(model, i)
			}
		} else {
			r.leave(&seats[i])
			model = slices.DeleteFunc(model, func(j int) bool { return i == j })
		}
		require.Equal(t, len(model), r.count)
		require.ElementsMatch(t, model, slices.Collect(r.all))
	}
	for i := range r.all {
		r.leave(&seats[i]) // The one that is yielded may leave.
	}
	assert.Zero(t, r.count)
	assert.Nil(t, r.first)
}

func TestSlotsAgainstAMap(t *testing.T) {
	var s slots[int]
	model := map[int32]int{}
	random := rand.New(rand.NewPCG(3, 4))
	check := func() {
		var want []int
		for _, v := range model {
			want = append(want, v)
		}
		var got []int
		for v := range s.all {
			got = append(got, *v)
		}
		require.ElementsMatch(t, want, got)
	}
	for i := range rounds {
		switch n := random.IntN(3); {
		case n < 2 || len(model) == 0:
			slot := s.put(&i)
			require.NotContains(t, model, slot, "a slot is given to one at a time")
			model[slot] = i
		default:
			for slot := range model {
				s.drop(slot)
				delete(model, slot)
				break
			}
		}
		if i%100 == 0 {
			check()
		}
	}
	check()
	for slot := range model {
		s.drop(slot)
		delete(model, slot)
	}
	check()
	assert.Nil(t, s.chunks.Load(), "the memory goes with the last row")
	assert.Empty(t, s.free)
}

// anyPlugin serves all volumes. Those whose names begin with "s" are shared by pods, attached and staged.
type anyPlugin struct{ volume.AttachableVolumePlugin }

func (*anyPlugin) Init(context.Context, volume.VolumeHost) error   { return nil }
func (*anyPlugin) GetPluginName() string                           { return "example.com/any" }
func (*anyPlugin) CanSupport(*volume.Spec) bool                    { return true }
func (*anyPlugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }
func (*anyPlugin) CanAttach(spec *volume.Spec) (bool, error)       { return spec.Name()[0] == 's', nil }
func (*anyPlugin) CanDeviceMount(spec *volume.Spec) (bool, error)  { return spec.Name()[0] == 's', nil }
func (*anyPlugin) RequiresRemount(spec *volume.Spec) bool          { return strings.HasSuffix(spec.Name(), "1") }

func newAnyPlugins(t testing.TB) *volume.VolumePluginMgr {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), &anyPlugin{}))
	return plugins
}

func TestTheIndexesOfTheDesiredState(t *testing.T) {
	d := NewDesiredStateOfWorld(newAnyPlugins(t), Options{})
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
	assert.Empty(t, d.byPlugin)
	assert.Empty(t, d.wants.byPod)
	assert.Zero(t, d.attachables.count+d.reported.count)
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
	case 4:
		d.MarkVolumeAttachability(name, random.IntN(2) == 0)
	case 5:
		d.RefreshPlugin("example.com/any")
	default:
		outer := fmt.Sprint(spec.Name(), "-", random.IntN(2))
		_, _ = d.AddPodToVolume(AddPodOptions{Pod: pod, VolumeSpec: spec, OuterVolumeSpecName: outer})
	}
}

// verify holds every index against the rows of all pairs.
func (d *DesiredStateOfWorld) verify(t *testing.T) {
	t.Helper()
	verifyPairs(t, &d.wants, func(v v1.UniqueVolumeName) *roster[*pair[want]] { return &d.volumes[v].pods })
	attachable, reported, of := 0, 0, 0
	for name, v := range d.volumes {
		require.Positive(t, v.pods.count, "no volume without a pod")
		for x := range v.pods.all {
			w := x.row
			require.Equal(t, name, w.VolumeName)
			require.Equal(t, v.plugin.attachable, w.PluginIsAttachable)
			require.Equal(t, v.ofReported.taken, w.ReportedInUse)
			require.Equal(t, w.VolumeName, d.volumeOfOuterName(w.PodName, w.OuterVolumeSpecNames[0]))
		}
		attachable, reported, of = attachable+one(v.plugin.attachable), reported+one(v.ofReported.taken), of+one(v.ofPlugin.taken)
		require.Equal(t, v.plugin.attachable, v.ofAttachables.taken)
	}
	require.Equal(t, attachable, d.attachables.count)
	require.Equal(t, reported, d.reported.count)
	require.Equal(t, len(d.volumes), of)
	require.Len(t, d.GetVolumeNamesOfPlugin("example.com/any"), of)
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func verifyPairs[R any](t *testing.T, p *pairs[R], ofVolume func(v1.UniqueVolumeName) *roster[*pair[R]]) {
	t.Helper()
	rows := map[*R]bool{}
	for row := range p.rows.all {
		require.False(t, rows[row], "no row twice")
		rows[row] = true
	}
	require.Len(t, rows, len(p.byKey))
	volumes, byPod := map[v1.UniqueVolumeName]int{}, map[volume.UniquePodName]int{}
	for key, x := range p.byKey {
		require.Equal(t, key, x.key)
		require.True(t, rows[x.row])
		require.True(t, x.ofVolume.taken && x.ofPod.taken)
		volumes[key.volume]++
		byPod[key.pod]++
	}
	for name, n := range volumes {
		require.Equal(t, n, ofVolume(name).count)
		require.Len(t, slices.Collect(ofVolume(name).all), n)
	}
	require.Len(t, p.byPod, len(byPod))
	for name, n := range byPod {
		require.Len(t, p.ofPod(name, nil), n)
	}
}

func TestTheIndexesOfTheActualState(t *testing.T) {
	a := NewActualStateOfWorld("node", newAnyPlugins(t), Options{})
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
	assert.Empty(t, a.byPlugin)
	assert.Empty(t, a.paths.byPath, "no path without an owner")
	assert.Zero(t, a.attachables.count+a.idle.count+a.staged.count)
}

func changeActual(a *ActualStateOfWorld, random *rand.Rand) {
	spec, pod := someSpec(random), somePod(random)
	podName := volume.GetUniquePodName(pod)
	name, _ := a.plugins.UniqueVolumeName(podName, spec)
	path := func(kind string) string { return [...]string{"", "/" + kind + "/1", "/" + kind + "/2"}[random.IntN(3)] }
	opts := operationexecutor.MarkVolumeOpts{VolumeName: name, PodName: podName, VolumeSpec: spec, MountPath: path("mnt")}
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
		_ = a.AddReconstructedVolume(ReconstructedVolume{
			VolumeName: name, VolumeSpec: spec, PluginIsAttachable: random.IntN(2) == 0, DevicePath: path("dev"), DeviceMountPath: path("stage"),
		})
		_, _ = a.AddReconstructedPod(opts)
		a.UpdateReconstructedDevicePath(name, path("dev"))
	}
}

// verify holds every index against the rows of all volumes.
func (a *ActualStateOfWorld) verify(t *testing.T) {
	t.Helper()
	verifyPairs(t, &a.mounts, func(v v1.UniqueVolumeName) *roster[*pair[knownMount]] { return &a.volumes[v].mounts })
	uses := map[PathUse]bool{}
	use := func(u PathUse) {
		if u.Path != "" {
			uses[u] = true
		}
	}
	attachable, idle, staged := 0, 0, 0
	for name, v := range a.volumes {
		require.True(t, v.ofPlugin.taken)
		require.NotEqual(t, NotAttached, v.attach)
		attachable, idle = attachable+one(v.plugin.attachable), idle+one(v.mounts.count == 0)
		staged += one(v.device == operationexecutor.DeviceGloballyMounted)
		use(PathUse{v.devicePath, DevicePath, name, ""})
		use(PathUse{v.deviceMountPath, DeviceMountPath, name, ""})
		for x := range v.mounts.all {
			require.Equal(t, v.devicePath, x.row.DevicePath)
			require.Equal(t, v.deviceMountPath, x.row.DeviceMountPath)
			use(PathUse{x.row.MountPath, MountPath, name, x.key.pod})
		}
	}
	require.Len(t, a.GetAttachableVolumeNames(), attachable)
	require.Len(t, a.GetUnmountedVolumes(), idle)
	require.Len(t, a.GetGloballyMountedVolumes(), staged)
	require.Len(t, a.GetVolumesOfPlugin("example.com/any"), len(a.volumes))
	found := 0
	for path := range a.paths.byPath {
		for _, u := range a.GetUsesOfPath(path) {
			require.True(t, uses[u], "%+v", u)
			found++
		}
	}
	require.Len(t, uses, found)
}
