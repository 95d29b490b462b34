package cache

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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

func TestRostersAgainstAMap(t *testing.T) {
	m := rosters[int, int]{}
	seats := make([]seat[int], 8)
	model := map[int][]int{}
	for i := range seats {
		seats[i].member = i
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		i := random.IntN(len(seats))
		key := i % 3
		if random.IntN(2) == 0 {
			m.join(key, &seats[i])
			if !slices.Contains(model[key], i) {
				model[key] = append(model[key], i)
			}
		} else {
			m.leave(key, &seats[i])
			model[key] = slices.DeleteFunc(model[key], func(j int) bool { return i == j })
		}
		for key := range 3 {
			require.ElementsMatch(t, model[key], slices.Collect(m[key].all))
			require.Equal(t, len(model[key]) > 0, m[key] != nil)
		}
	}
}

// TestPairsAgainstAMap has more users of one volume than are looked through, and more rows than fit into one chunk.
func TestPairsAgainstAMap(t *testing.T) {
	p := pairs[int]{byPod: rosters[volume.UniquePodName, *pair[int]]{}}
	of := make([]users[int], 30)
	type key struct {
		volume int
		pod    volume.UniquePodName
	}
	model := map[key]int{}
	random := rand.New(rand.NewPCG(3, 4))
	check := func() {
		var got []int
		for v := range p.all {
			got = append(got, *v)
		}
		require.ElementsMatch(t, slices.Collect(maps.Values(model)), got)
		require.Equal(t, len(model), p.inUse)
		for k, v := range model {
			require.Equal(t, v, *of[k.volume].get(k.pod))
		}
	}
	for i := range 10 * rounds {
		k := key{random.IntN(len(of)), volume.UniquePodName(fmt.Sprint(random.IntN(40)))}
		if random.IntN(3) > 0 {
			p.put(&of[k.volume], k.pod, &i)
			model[k] = i
		} else {
			x := of[k.volume].find(k.pod)
			_, there := model[k]
			require.Equal(t, there, x != nil)
			if there {
				p.remove(&of[k.volume], x)
				delete(model, k)
			}
		}
		if i%1000 == 0 {
			check()
		}
	}
	require.Greater(t, p.inUse, chunkSize)
	for k := range model {
		p.remove(&of[k.volume], of[k.volume].find(k.pod))
		delete(model, k)
	}
	check()
	assert.Nil(t, p.chunks.Load(), "the memory goes with the last row")
	assert.Empty(t, p.byPod)
	p.put(&of[0], "pod", new(int))
	assert.Equal(t, 1, p.inUse)
}

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
	verifyPairs(t, &d.wants, slices.Sorted(maps.Keys(d.volumes)), func(v v1.UniqueVolumeName) *users[want] { return &d.volumes[v].pods })
	attachable, reported, of := 0, 0, 0
	for name, v := range d.volumes {
		require.Positive(t, v.pods.count, "no volume without a pod")
		for x := range v.pods.all {
			w := x.row.Load()
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

func verifyPairs[R any](t *testing.T, p *pairs[R], names []v1.UniqueVolumeName, of func(v1.UniqueVolumeName) *users[R]) {
	t.Helper()
	rows := map[*R]bool{}
	for row := range p.all {
		require.False(t, rows[row], "no row twice")
		rows[row] = true
	}
	require.Len(t, rows, p.inUse)
	byPod, sum := map[volume.UniquePodName]int{}, 0
	for _, name := range names {
		require.Len(t, slices.Collect(of(name).all), of(name).count)
		for x := range of(name).all {
			require.True(t, rows[x.row.Load()])
			require.Same(t, x, of(name).find(x.pod))
			require.True(t, x.ofPod.taken)
			byPod[x.pod]++
			sum++
		}
	}
	require.Equal(t, p.inUse, sum)
	require.Len(t, p.byPod, len(byPod))
	for name, n := range byPod {
		require.Len(t, p.ofPod(name, nil), n)
	}
}

func TestTheIndexesOfTheActualState(t *testing.T) {
	a := NewActualStateOfWorld("node", newAnyPlugins(t), Options{})
	random := rand.New(rand.NewPCG(7, 8))
	for i := range rounds {
		changeActual(a, random)
		if i > 100 { // The index by path is made late, of what is there.
			a.verify(t)
		}
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
	assert.Empty(t, a.paths.first, "no path without an owner")
	assert.Empty(t, a.paths.more)
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
	verifyPairs(t, &a.mounts, slices.Sorted(maps.Keys(a.volumes)), func(v v1.UniqueVolumeName) *users[MountedVolume] { return &a.volumes[v].mounts })
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
			row := x.row.Load()
			require.Equal(t, v.devicePath, row.DevicePath)
			require.Equal(t, v.deviceMountPath, row.DeviceMountPath)
			require.Equal(t, v.plugin.remountable && row.State == operationexecutor.VolumeMounted && !row.RemountRequired, x.refreshable)
			use(PathUse{row.MountPath, MountPath, name, x.pod})
		}
	}
	require.Len(t, a.GetAttachableVolumeNames(), attachable)
	require.Len(t, a.GetUnmountedVolumes(), idle)
	require.Len(t, a.GetGloballyMountedVolumes(), staged)
	require.Len(t, a.GetVolumesOfPlugin("example.com/any"), len(a.volumes))
	found := 0
	_ = a.GetUsesOfPath("/nowhere")
	for path := range a.paths.first {
		for _, u := range a.GetUsesOfPath(path) {
			require.True(t, uses[u], "%+v", u)
			found++
		}
	}
	require.Len(t, uses, found)
}
