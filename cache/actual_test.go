package cache_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

func newActual(t *testing.T, p *cachetest.Plugin) (*cache.ActualStateOfWorld, *changes) {
	told := &changes{}
	return cache.NewActualStateOfWorld(node, cachetest.NewPlugins(t, p), told.options()), told
}

// newStaged returns a state in which the volume "s1" is attached and staged.
func newStaged(t *testing.T) (*cache.ActualStateOfWorld, v1.UniqueVolumeName, *changes) {
	a, told := newActual(t, &cachetest.Plugin{})
	name := cachetest.Shared("s1")
	require.NoError(t, a.MarkVolumeAsAttached("", cachetest.Spec("s1"), node, "/dev/s1"))
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged/s1", ""))
	told.take()
	return a, name, told
}

func TestAttachingTwiceUpdatesThePath(t *testing.T) {
	a, told := newActual(t, &cachetest.Plugin{})
	name := cachetest.Shared("s1")
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, "/dev/a"))
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), "", "/dev/b"))
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	v, ok := a.GetAttachedVolume(name)
	require.True(t, ok)
	assert.Equal(t, "/dev/b", v.DevicePath)
	assert.Equal(t, cache.Attached, v.AttachState)
	assert.True(t, v.PluginIsAttachable)
	assert.True(t, v.PluginIsDeviceMountable)
	assert.Equal(t, node, v.NodeName)
	assert.Equal(t, []v1.UniqueVolumeName{name, name, name}, told.take())

	require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared("pods/p/own"), cachetest.Spec("own"), node, ""))
	v, _ = a.GetAttachedVolume(cachetest.Shared("pods/p/own"))
	assert.False(t, v.PluginIsAttachable)
}

func TestAnUncertainAttachmentIsKept(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{})
	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s1"), cachetest.Spec("s1"), node))
	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s2"), nil, node))
	require.NoError(t, a.MarkVolumeAsUncertain("gone.example.com/plugin/s3", nil, node))
	for _, name := range []v1.UniqueVolumeName{cachetest.Shared("s1"), cachetest.Shared("s2"), "gone.example.com/plugin/s3"} {
		v, ok := a.GetAttachedVolume(name)
		require.True(t, ok)
		assert.Equal(t, cache.AttachUncertain, v.AttachState)
		assert.True(t, v.PluginIsAttachable, "it must be detached before it is forgotten")
	}
	a.MarkVolumeAsDetached(cachetest.Shared("s1"), node)
	assert.False(t, a.VolumeExists(cachetest.Shared("s1")))
}

func TestOtherNodesAreRefused(t *testing.T) {
	a, name, told := newStaged(t)
	require.ErrorIs(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), "other", ""), volume.ErrInvalid)
	require.ErrorIs(t, a.MarkVolumeAsUncertain(name, cachetest.Spec("s1"), "other"), volume.ErrInvalid)
	require.ErrorIs(t, a.RemoveVolumeFromReportAsAttached(name, "other"), volume.ErrInvalid)
	require.NoError(t, a.RemoveVolumeFromReportAsAttached(name, node))
	require.NoError(t, a.MarkDeviceAsUnmounted(name))
	told.take()
	a.MarkVolumeAsDetached(name, "other")
	assert.True(t, a.VolumeExists(name))
	assert.Empty(t, told.take())
}

func TestAVolumeThatIsNotAttachedIsNotStagedNorMounted(t *testing.T) {
	a, told := newActual(t, &cachetest.Plugin{})
	name := cachetest.Shared("s1")
	for _, err := range []error{
		a.MarkDeviceAsMounted(name, "", "/x", ""), a.MarkDeviceAsUncertain(name, "", "/x", ""), a.MarkDeviceAsUnmounted(name),
		a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")), a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")),
		a.MarkVolumeAsUnmounted("p", name),
	} {
		require.ErrorIs(t, err, cache.ErrNotAttached)
	}
	_, err := a.AddReconstructedPod(mountedFor(name, "p", "s1"))
	require.ErrorIs(t, err, cache.ErrNotAttached)
	assert.Empty(t, told.take())
	require.NoError(t, a.DeleteVolume(name))
	assert.Empty(t, told.take())
	assert.Equal(t, operationexecutor.DeviceNotMounted, a.GetDeviceMountState(name))
	assert.Equal(t, operationexecutor.VolumeNotMounted, a.GetVolumeMountState(name, "p"))
	assert.False(t, a.IsVolumeReconstructed(name, "p"))
	assert.Empty(t, a.PodsOfVolume(name))
}

func TestAVolumeInUseIsNotDetached(t *testing.T) {
	a, name, _ := newStaged(t)
	require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")))
	require.ErrorIs(t, a.DeleteVolume(name), volume.ErrInUse)
	a.MarkVolumeAsDetached(name, node)
	require.True(t, a.VolumeExists(name))
	require.ErrorIs(t, a.MarkDeviceAsUnmounted(name), volume.ErrInUse)
	require.NoError(t, a.MarkVolumeAsUnmounted("p", name))
	require.ErrorIs(t, a.DeleteVolume(name), volume.ErrInUse, "it is still staged")
	require.NoError(t, a.MarkDeviceAsUnmounted(name))
	v, _ := a.GetAttachedVolume(name)
	assert.Empty(t, v.DeviceMountPath)
	assert.Equal(t, "/dev/s1", v.DevicePath)
	require.NoError(t, a.DeleteVolume(name))
	assert.Empty(t, a.GetAttachedVolumes())
	assert.Empty(t, a.GetPods())
}

// TestUncertainCountsAsPossiblyMountedButNotAsMounted is the difference between the queries.
func TestUncertainCountsAsPossiblyMountedButNotAsMounted(t *testing.T) {
	a, name, _ := newStaged(t)
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "q", "s1")))
	assert.Len(t, a.GetMountedVolumes(), 1)
	assert.Len(t, a.GetAllMountedVolumes(), 2)
	assert.Len(t, a.GetPossiblyMountedVolumesForVolume(name), 2)
	assert.Empty(t, a.GetMountedVolumesForPod("q"))
	assert.Len(t, a.GetPossiblyMountedVolumesForPod("q"), 1)
	assert.False(t, a.PodRemovedFromVolume("q", name))
	assert.True(t, a.PodRemovedFromVolume("r", name))
	assert.Empty(t, a.GetUnmountedVolumes())
	assert.Len(t, a.GetGloballyMountedVolumes(), 1)
	assert.Equal(t, []volume.UniquePodName{"p", "q"}, a.PodsOfVolume(name))
	assert.Equal(t, []volume.UniquePodName{"p", "q"}, a.GetPods())
	snapshot, ok := a.Snapshot(name)
	require.True(t, ok)
	assert.Equal(t, 2, snapshot.PodCount)
	assert.Equal(t, operationexecutor.VolumeMounted, snapshot.Mounts[0].State)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, snapshot.Mounts[1].State)

	require.NoError(t, a.MarkVolumeAsUnmounted("p", name))
	require.NoError(t, a.MarkVolumeAsUnmounted("q", name))
	require.NoError(t, a.MarkVolumeAsUnmounted("q", name), "once more is no error")
	assert.Len(t, a.GetUnmountedVolumes(), 1)
	assert.Empty(t, a.GetPods())
}

func TestARowHoldsWhatTeardownNeeds(t *testing.T) {
	a, name, _ := newStaged(t)
	o := mountedFor(name, "p", "s1")
	o.VolumeGidValue = "1234"
	require.NoError(t, a.MarkVolumeAsMounted(o))
	before, ok := a.GetMountedVolume(name, "p")
	require.True(t, ok)
	assert.Equal(t, operationexecutor.MountedVolume{
		PodName: "p", PodUID: "p", Pod: o.Pod, VolumeName: name, InnerVolumeSpecName: "s1", OuterVolumeSpecNames: []string{"outer"},
		PluginName: cachetest.PluginName, VolumeSpec: o.VolumeSpec, VolumeGidValue: "1234", DeviceMountPath: "/staged/s1", DevicePath: "/dev/s1",
	}, before.MountedVolume)

	require.NoError(t, a.MarkVolumeMountAsUncertain(operationexecutor.MountedVolume{VolumeName: name, PodName: "p"}))
	after, _ := a.GetMountedVolume(name, "p")
	assert.Equal(t, before.MountedVolume, after.MountedVolume, "what is left out stays")
	assert.Equal(t, operationexecutor.VolumeMounted, before.State, "a row never changes after it was returned")
	assert.Equal(t, operationexecutor.VolumeMountUncertain, after.State)
}

func TestRemountIsRequiredUntilItIsMountedAgain(t *testing.T) {
	for _, remount := range []bool{false, true} {
		t.Run(fmt.Sprint(remount), func(t *testing.T) {
			a, told := newActual(t, &cachetest.Plugin{Remount: remount})
			own, doubtful := cachetest.Shared("pods/p/own"), cachetest.Shared("pods/p/tmp")
			require.NoError(t, a.MarkVolumeAsAttached(own, cachetest.Spec("own"), node, ""))
			require.NoError(t, a.MarkVolumeAsAttached(doubtful, cachetest.Spec("tmp"), node, ""))
			require.NoError(t, a.MarkVolumeAsMounted(mountedFor(own, "p", "own")))
			require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(doubtful, "p", "tmp")))
			told.take()
			a.MarkRemountRequired("p")
			row, _ := a.GetMountedVolume(own, "p")
			assert.Equal(t, remount, row.RemountRequired)
			row, _ = a.GetMountedVolume(doubtful, "p")
			assert.False(t, row.RemountRequired, "what is not mounted is not remounted")
			if !remount {
				assert.Empty(t, told.take())
				return
			}
			assert.Equal(t, []v1.UniqueVolumeName{own}, told.take())
			a.MarkRemountRequired("p")
			assert.Empty(t, told.take())
			require.NoError(t, a.MarkVolumeAsMounted(mountedFor(own, "p", "own")))
			row, _ = a.GetMountedVolume(own, "p")
			assert.False(t, row.RemountRequired)
		})
	}
}

// TestAnUpdateDuringASetUpIsNotLost: the set-up, the first one or a later one, was of the pod as it was.
func TestAnUpdateDuringASetUpIsNotLost(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{Remount: true})
	own := cachetest.Shared("pods/p/own")
	require.NoError(t, a.MarkVolumeAsAttached(own, cachetest.Spec("own"), node, ""))
	setUp := func(during func()) bool {
		end := a.WatchSetUp(own, "p")
		during()
		require.NoError(t, a.MarkVolumeAsMounted(mountedFor(own, "p", "own")))
		end()
		row, _ := a.GetMountedVolume(own, "p")
		return row.RemountRequired
	}
	update := func() { a.MarkRemountRequired("p") }
	assert.True(t, setUp(update), "during the first")
	assert.True(t, setUp(update), "while it was marked already")
	assert.False(t, setUp(func() {}))
	assert.False(t, setUp(func() { a.MarkRemountRequired("another") }))
	a.WatchSetUp(own, "p")() // One that has failed.
	update()
	assert.False(t, setUp(func() {}), "it was updated before")
	row, _ := a.GetMountedVolume(own, "p")
	assert.Equal(t, operationexecutor.VolumeMounted, row.State)
}

// TestAnUpdateDuringTheFirstSetUpOfWhatWasFoundIsNotLost: what the plugin wants is not known before.
func TestAnUpdateDuringTheFirstSetUpOfWhatWasFoundIsNotLost(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{Remount: true})
	own := cachetest.Shared("pods/p/own")
	require.NoError(t, a.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: own, VolumeSpec: cachetest.Spec("own")}))
	end := a.WatchSetUp(own, "p")
	a.MarkRemountRequired("p")
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(own, "p", "own")))
	end()
	row, _ := a.GetMountedVolume(own, "p")
	assert.True(t, row.RemountRequired)
}

func found(name string) operationexecutor.AttachedVolume {
	return operationexecutor.AttachedVolume{
		VolumeName: cachetest.Shared(name), VolumeSpec: cachetest.Spec(name), PluginIsAttachable: true, PluginIsDeviceMountable: true,
		DevicePath: "/dev/" + name, DeviceMountPath: "/staged/" + name,
	}
}

func TestWhatIsFoundIsUncertainUntilSomethingSucceeds(t *testing.T) {
	a, told := newActual(t, &cachetest.Plugin{})
	name := cachetest.Shared("s1")
	require.NoError(t, a.AddReconstructedVolume(found("s1")))
	added, err := a.AddReconstructedPod(mountedFor(name, "p", "s1"))
	require.NoError(t, err)
	assert.True(t, added)
	assert.Equal(t, []v1.UniqueVolumeName{name, name}, told.take())
	v, _ := a.GetAttachedVolume(name)
	assert.Equal(t, cache.AttachUncertain, v.AttachState)
	assert.Equal(t, operationexecutor.DeviceMountUncertain, v.DeviceMountState)
	assert.Equal(t, "/staged/s1", v.DeviceMountPath)
	assert.Equal(t, "/dev/s1", v.DevicePath)
	assert.True(t, v.DeviceReconstructed)
	assert.True(t, a.IsVolumeReconstructed(name, ""))
	assert.True(t, a.IsVolumeReconstructed(name, "p"))
	assert.Equal(t, operationexecutor.VolumeMountUncertain, a.GetVolumeMountState(name, "p"))

	require.NoError(t, a.MarkDeviceAsUncertain(name, "", "", ""))
	require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")))
	assert.True(t, a.IsVolumeReconstructed(name, ""), "a failure is no success")
	assert.True(t, a.IsVolumeReconstructed(name, "p"))

	require.NoError(t, a.MarkDeviceAsMounted(name, "", "", ""))
	assert.False(t, a.IsVolumeReconstructed(name, ""))
	assert.True(t, a.IsVolumeReconstructed(name, "p"), "staging says nothing of the set-up")
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	assert.False(t, a.IsVolumeReconstructed(name, "p"))
}

func TestWhatIsFoundNeverOverwritesWhatIsKnown(t *testing.T) {
	a, name, _ := newStaged(t)
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	before, _ := a.Snapshot(name)
	r := found("s1")
	r.DeviceMountPath, r.DevicePath = "/elsewhere", "/dev/elsewhere"
	require.NoError(t, a.AddReconstructedVolume(r))
	added, err := a.AddReconstructedPod(operationexecutor.MountedVolume{VolumeName: name, PodName: "p"})
	require.NoError(t, err)
	assert.False(t, added)
	after, _ := a.Snapshot(name)
	assert.Equal(t, before, after)
}

// TestAnAttachmentThatIsUncertainStaysSoWhateverIsFoundLater: what is found again without it says nothing of it.
func TestAnAttachmentThatIsUncertainStaysSoWhateverIsFoundLater(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{})
	require.NoError(t, a.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("s1"), PluginIsAttachable: true}))
	require.NoError(t, a.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("s1"), DeviceMountPath: "/staged"}))
	v, _ := a.GetAttachedVolume(cachetest.Shared("s1"))
	assert.Equal(t, cache.AttachUncertain, v.AttachState)
	assert.True(t, v.PluginIsAttachable)
}

func TestWhatIsFoundWithoutAttachmentOrStaging(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{})
	require.NoError(t, a.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("pods/p/own"), VolumeSpec: cachetest.Spec("own")}))
	v, _ := a.GetAttachedVolume(cachetest.Shared("pods/p/own"))
	assert.Equal(t, cache.Attached, v.AttachState, "it needs no attaching")
	assert.Equal(t, operationexecutor.DeviceNotMounted, v.DeviceMountState)
	assert.Equal(t, cachetest.PluginName, v.PluginName)
	require.ErrorIs(t, a.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: "nonsense"}), volume.ErrInvalid)
}

func TestTheActualStateIsUsedByManyAtOnce(t *testing.T) {
	a, name, _ := newStaged(t)
	var all sync.WaitGroup
	b := cache.NewActualStateOfWorld(node, cachetest.NewPlugins(t, &cachetest.Plugin{}), cache.Options{})
	require.NoError(t, b.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	require.NoError(t, b.MarkDeviceAsMounted(name, "", "/staged/s1", ""))
	for i := range 8 {
		all.Go(func() {
			podName := fmt.Sprint("p", i)
			for range 50 {
				_ = b.MarkVolumeAsMounted(mountedFor(name, podName, "s1"))
				_, _ = b.Snapshot(name)
				b.MarkRemountRequired(volume.UniquePodName(podName))
				_ = b.GetAllMountedVolumes()
				_ = b.MarkVolumeAsUnmounted(volume.UniquePodName(podName), name)
			}
		})
	}
	all.Wait()
	assert.Empty(t, b.GetPods())
	assert.Empty(t, a.GetPods())
}
