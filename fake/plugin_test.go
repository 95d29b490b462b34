package fake

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// The plugin is held to its contract in volume/volumetest, over this mounter and over the kernel's. Here is what is the
// fake's own.

func initialised(t *testing.T, options PluginOptions) *Plugin {
	t.Helper()
	plugin := NewPlugin(options)
	require.NoError(t, volume.NewVolumePluginMgr(NewHost("")).InitPlugins(t.Context(), plugin))
	return plugin
}

func persistent(name string, modes ...v1.PersistentVolumeAccessMode) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes,
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: "fake.example.com", VolumeHandle: name},
			},
		},
	}, false)
}

func pod(uid types.UID) *v1.Pod { return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}} }

func attacherOf(t *testing.T, plugin *Plugin) volume.Attacher {
	t.Helper()
	attacher, err := plugin.NewAttacher()
	require.NoError(t, err)
	return attacher
}

func detacherOf(t *testing.T, plugin *Plugin) volume.Detacher {
	t.Helper()
	detacher, err := plugin.NewDetacher()
	require.NoError(t, err)
	return detacher
}

func TestPluginCanDoEverythingButWhatIsTurnedOff(t *testing.T) {
	assert.Equal(t, volume.AllCapabilities, volume.CapabilitiesOf(NewPlugin(PluginOptions{})))
	without := volume.CapBlock | volume.CapExpand
	assert.Equal(t, volume.AllCapabilities&^without, volume.CapabilitiesOf(NewPlugin(PluginOptions{Without: without})))
}

func TestCallsReadAsTheLifeOfAVolume(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	spec := persistent("data")
	attacher, detacher := attacherOf(t, plugin), detacherOf(t, plugin)
	device, err := attacher.Attach(t.Context(), spec, "node-1")
	require.NoError(t, err)
	device, err = attacher.WaitForAttach(t.Context(), spec, device, pod("pod-1"))
	require.NoError(t, err)
	stage, err := attacher.GetDeviceMountPath(spec)
	require.NoError(t, err)
	require.NoError(t, attacher.MountDevice(t.Context(), spec, device, stage, volume.DeviceMounterArgs{}))
	mounter, err := plugin.NewMounter(spec, pod("pod-1"))
	require.NoError(t, err)
	require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{}))
	unmounter, err := plugin.NewUnmounter("data", "pod-1")
	require.NoError(t, err)
	require.NoError(t, unmounter.TearDown(t.Context()))
	require.NoError(t, detacher.UnmountDevice(t.Context(), stage))
	require.NoError(t, detacher.Detach(t.Context(), "data", "node-1"))

	var lines []string
	for _, call := range plugin.Calls() {
		lines = append(lines, call.String())
	}
	assert.Equal(t, []string{
		"Init",
		`Attach "data" on node-1`,
		`WaitForAttach "data" for pod-1 on node-1`,
		`MountDevice "data"`,
		`NewMounter "data" for pod-1`,
		`SetUp "data" for pod-1`,
		`NewUnmounter "data" for pod-1`,
		`TearDown "data" for pod-1`,
		`UnmountDevice "data"`,
		`Detach "data" on node-1`,
	}, lines)
}

func TestVolumeThatIsNotStagedIsNotSetUp(t *testing.T) {
	world := NewMounter(MounterOptions{})
	plugin := initialised(t, PluginOptions{Mounter: world})
	mounter, err := plugin.NewMounter(persistent("data"), pod("pod-1"))
	require.NoError(t, err)
	err = mounter.SetUp(t.Context(), volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrNotMounted)
	require.ErrorIs(t, err, volume.ErrTransient)
	table, err := world.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, table, 1, "the root alone")
}

func TestExclusiveVolumeIsAttachedToOneNode(t *testing.T) {
	for _, row := range []struct {
		modes []v1.PersistentVolumeAccessMode
		want  error
	}{
		{nil, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, volume.ErrInUse},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, volume.ErrInUse},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}, nil},
	} {
		t.Run(fmt.Sprint(row.modes), func(t *testing.T) {
			plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
			attacher := attacherOf(t, plugin)
			_, err := attacher.Attach(t.Context(), persistent("data", row.modes...), "node-1")
			require.NoError(t, err)
			_, err = attacher.Attach(t.Context(), persistent("data", row.modes...), "node-2")
			require.ErrorIs(t, err, row.want)
		})
	}
}

func TestBulkVerifyTellsEachNodeApart(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	_, err := attacherOf(t, plugin).Attach(t.Context(), persistent("data"), "node-1")
	require.NoError(t, err)
	specs := map[v1.UniqueVolumeName]*volume.Spec{"a": persistent("data"), "foreign": {}}
	answer, err := plugin.BulkVerifyVolumes(t.Context(), map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{
		"node-1": specs, "node-2": specs,
	})
	require.NoError(t, err)
	assert.Equal(t, map[types.NodeName]map[v1.UniqueVolumeName]bool{"node-1": {"a": true}, "node-2": {"a": false}}, answer)
}

func TestExpansionStopsAtTheLargestSize(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{}), MaxSize: 100})
	require.NoError(t, plugin.Backend().Create("data", 10))
	old := *resource.NewQuantity(10, resource.BinarySI)
	grown, err := plugin.ExpandVolumeDevice(t.Context(), persistent("data"), *resource.NewQuantity(50, resource.BinarySI), old)
	require.NoError(t, err)
	assert.EqualValues(t, 50, grown.Value())
	_, err = plugin.ExpandVolumeDevice(t.Context(), persistent("data"), *resource.NewQuantity(101, resource.BinarySI), grown)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	size, ok := plugin.Backend().Size("data")
	assert.True(t, ok)
	assert.EqualValues(t, 50, size)
}

// TestANodeGrowsWhatTheStorageHas and no more; and may be told to do nothing.
func TestANodeGrowsWhatTheStorageHas(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	require.NoError(t, plugin.Backend().Create("data", 50))
	_, ok := plugin.Backend().SizeOn("data", "node-1")
	assert.False(t, ok)
	options := volume.NodeResizeOptions{VolumeSpec: persistent("data"), NewSize: *resource.NewQuantity(51, resource.BinarySI)}
	done, err := plugin.NodeExpand(t.Context(), options)
	require.Error(t, err)
	assert.False(t, done)

	options.NewSize.Set(50)
	plugin.Inject(MethodNodeExpand, SkipWork())
	done, err = plugin.NodeExpand(t.Context(), options)
	require.NoError(t, err)
	assert.False(t, done)
	done, err = plugin.NodeExpand(t.Context(), options)
	require.NoError(t, err)
	assert.True(t, done)
	size, ok := plugin.Backend().SizeOn("data", "node-1")
	assert.True(t, ok)
	assert.EqualValues(t, 50, size)
	_, err = plugin.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: volume.NewSpecFromVolume(&v1.Volume{Name: "own"})})
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestAnExclusiveVolumeSaysWhichNodeHasIt(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	exclusive := persistent("data")
	exclusive.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	attacher, err := plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), exclusive, "node-2")
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), exclusive, "node-1")
	var dangling *volume.DanglingAttachError
	require.ErrorAs(t, err, &dangling)
	require.ErrorIs(t, err, volume.ErrInUse)
	assert.Equal(t, types.NodeName("node-2"), dangling.CurrentNode)
	assert.Equal(t, []types.NodeName{"node-2"}, plugin.Backend().Nodes("data"))
}

func TestAttachLimitIsReported(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{}), AttachLimit: 3})
	limits, err := plugin.GetVolumeLimits(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"attachable-volumes-csi-fake.example.com": 3}, limits)
}

func TestRecycleOfAVolumeInUseIsRefused(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	var events []string
	record := func(eventtype, message string) { events = append(events, eventtype+" "+message) }
	_, err := attacherOf(t, plugin).Attach(t.Context(), persistent("data"), "node-1")
	require.NoError(t, err)
	require.ErrorIs(t, plugin.Recycle(t.Context(), "data", persistent("data"), record), volume.ErrInUse)
	require.NoError(t, detacherOf(t, plugin).Detach(t.Context(), "data", "node-1"))
	require.NoError(t, plugin.Recycle(t.Context(), "data", persistent("data"), record))
	assert.Equal(t, []string{"Normal recycled volume data"}, events)
}

func TestBlockVolumeHasItsPaths(t *testing.T) {
	plugin := initialised(t, PluginOptions{Mounter: NewMounter(MounterOptions{})})
	mapper, err := plugin.NewBlockVolumeMapper(persistent("data"), pod("pod-1"))
	require.NoError(t, err)
	path, err := mapper.GetGlobalMapPath(persistent("data"))
	require.NoError(t, err)
	assert.Equal(t, "/node/plugins/example.com/fake/volumeDevices/data", path)
	dir, link := mapper.GetPodDeviceMapPath()
	assert.Equal(t, "/node/pods/pod-1/volumeDevices/example.com~fake", dir)
	assert.Equal(t, "data", link)
	_, err = plugin.NewBlockVolumeUnmapper("data", "")
	require.NoError(t, err)
	require.NoError(t, plugin.Backend().Create("data", 1))
	spec, err := plugin.ConstructBlockVolumeSpec("pod-1", "data", path)
	require.NoError(t, err)
	assert.Equal(t, v1.PersistentVolumeBlock, *spec.PersistentVolume.Spec.VolumeMode)
}

func TestPluginWithoutMounterIsNotRegistered(t *testing.T) {
	require.ErrorIs(t, volume.NewVolumePluginMgr(NewHost("")).InitPlugins(t.Context(), NewPlugin(PluginOptions{})), volume.ErrInvalid)
}

func TestHostIsThatOfANodeInMemory(t *testing.T) {
	host := NewHost("")
	assert.Equal(t, "/node/pods/pod-1/volumes/example.com~fake/data", host.GetPodVolumeDir("pod-1", "example.com/fake", "data"))
	assert.Equal(t, Node, host.GetNodeName())
	assert.Equal(t, types.NodeName("node-2"), NewHost("node-2").GetNodeName())
	assert.Panics(t, func() { NewHost("../node") })
}

func TestPluginBeforeInitReportsInsteadOfCrashing(t *testing.T) {
	plugin := NewPlugin(PluginOptions{Mounter: NewMounter(MounterOptions{})})
	_, err := plugin.NewMounter(persistent("data"), pod("pod-1"))
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestRecorderKeepsEventsInOrder(t *testing.T) {
	var recorder Recorder
	about := pod("pod-1")
	recorder.Eventf(about, v1.EventTypeNormal, "Mounted", "volume %q", "data")
	recorder.Eventf(pod("pod-1"), v1.EventTypeWarning, "FailedMount", "no")
	events := recorder.Events()
	require.Len(t, events, 2)
	assert.Equal(t, `Normal Mounted: volume "data"`, events[0].String())
	assert.Same(t, about, events[0].Object)
	events[0].Message = "changed"
	assert.Equal(t, `volume "data"`, recorder.Events()[0].Message, "a copy")
}
