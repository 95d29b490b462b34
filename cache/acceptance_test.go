package cache_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/volume"
)

// This file holds what docs/acceptance.md asks for and no other test does on its own.

// TestUncertainIsKeptUntilItIsTornDown, the device and each pod for itself: nothing is forgotten that may be there, and
// nothing that may not be there is taken for usable.
func TestUncertainIsKeptUntilItIsTornDown(t *testing.T) {
	t.Run("the device", func(t *testing.T) {
		a, name, _ := newStaged(t)
		require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
		require.NoError(t, a.MarkDeviceAsUncertain(name, "", "", ""))
		usable, _, err := a.PodExistsInVolume("p", name, size("0"), "")
		require.NoError(t, err)
		assert.False(t, usable, "it is staged again before it is used")
		require.NoError(t, a.MarkVolumeAsUnmounted("p", name))
		require.ErrorIs(t, a.DeleteVolume(name), volume.ErrInUse)
		require.NoError(t, a.MarkDeviceAsUnmounted(name))
		require.NoError(t, a.DeleteVolume(name))
	})
	t.Run("a pod of a volume that is staged", func(t *testing.T) {
		a, name, _ := newStaged(t)
		require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")))
		usable, _, err := a.PodExistsInVolume("p", name, size("0"), "")
		require.NoError(t, err)
		assert.False(t, usable, "it is set up again before it is used")
		require.ErrorIs(t, a.MarkDeviceAsUnmounted(name), volume.ErrInUse, "the pod comes first")
	})
	t.Run("a pod of one that is not", func(t *testing.T) {
		a, _ := newActual(t, &cachetest.Plugin{})
		name := cachetest.Shared("pods/p/own")
		require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("own"), node, ""))
		require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "own")))
		require.ErrorIs(t, a.DeleteVolume(name), volume.ErrInUse)
		require.NoError(t, a.MarkVolumeAsUnmounted("p", name))
		require.NoError(t, a.DeleteVolume(name))
	})
}

// TestAVolumeThatMayBeStagedCountsAsUsed: not what is mounted for certain decides, but what may be.
func TestAVolumeThatMayBeStagedCountsAsUsed(t *testing.T) {
	plugins := cachetest.NewPlugins(t, &cachetest.Plugin{})
	d, a := cache.NewDesiredStateOfWorld(plugins, cache.Options{}), cache.NewActualStateOfWorld(node, plugins, cache.Options{})
	name := cachetest.Shared("s1")
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	require.NoError(t, a.MarkDeviceAsUncertain(name, "", "/staged", ""))
	assert.Empty(t, a.GetGloballyMountedVolumes())
	assert.Equal(t, []v1.UniqueVolumeName{name}, cache.VolumesInUse(d, a))
}

// TestABlockVolumeAndAFilesystemOfOneAssetShareItsName, so that the one is not staged beside the other.
func TestABlockVolumeAndAFilesystemOfOneAssetShareItsName(t *testing.T) {
	d, _ := newDesired(t, &cachetest.Plugin{})
	filesystem, block := cachetest.RWX("s1"), cachetest.RWX("s1")
	mode := v1.PersistentVolumeBlock
	block.PersistentVolume.Spec.VolumeMode = &mode
	for podName, s := range map[string]*volume.Spec{"p": filesystem, "q": block} {
		name, err := d.AddPodToVolume(cache.AddPodOptions{Pod: cachetest.Pod(podName), VolumeSpec: s, OuterVolumeSpecName: "data"})
		require.NoError(t, err)
		assert.Equal(t, cachetest.Shared("s1"), name)
	}
	assert.Len(t, d.VolumesToMount(cachetest.Shared("s1")), 2)
}

// TestAPodThatIsMadeAgainInheritsNothing on its node, neither set-ups nor errors, although it has the name of the first.
func TestAPodThatIsMadeAgainInheritsNothing(t *testing.T) {
	first, second := cachetest.Pod("p"), cachetest.Pod("p")
	first.UID, second.UID = "uid-1", "uid-2"
	d, _ := newDesired(t, &cachetest.Plugin{})
	a, name, _ := newStaged(t)
	add := func(p *v1.Pod) {
		_, err := d.AddPodToVolume(cache.AddPodOptions{Pod: p, VolumeSpec: cachetest.Spec("s1"), OuterVolumeSpecName: "data"})
		require.NoError(t, err)
	}
	add(first)
	mark := mountedFor(name, "uid-1", "s1")
	mark.Pod = first
	require.NoError(t, a.MarkVolumeAsMounted(mark))

	add(second)
	assert.Len(t, d.VolumesToMount(name), 2, "both are wanted until the first is taken away")
	mounted, _, err := a.PodExistsInVolume("uid-2", name, size("0"), "")
	require.NoError(t, err)
	assert.False(t, mounted)
	d.DeletePod("uid-1")
	assert.Len(t, d.VolumesToMount(name), 1)
	assert.Equal(t, []volume.UniquePodName{"uid-1"}, a.PodsOfVolume(name), "what the first had is still to be taken away")
}

// TestNothingGrowsWithWhatIsGone: volumes and pods that came and went leave no memory behind.
func TestNothingGrowsWithWhatIsGone(t *testing.T) {
	live := lifeOnANode(t)
	assert.Less(t, cachetest.ObjectsOf(live), int64(1000), "fewer than one object of every three")
	runtime.KeepAlive(live)
}

func lifeOnANode(t *testing.T) func(i int) {
	plugins := cachetest.NewPlugins(t, &cachetest.Plugin{})
	d, a := cache.NewDesiredStateOfWorld(plugins, cache.Options{}), cache.NewActualStateOfWorld(node, plugins, cache.Options{})
	return func(i int) {
		inner, podName := fmt.Sprint("s", i), fmt.Sprint("pod-", i)
		name := add(t, d, podName, inner, "data")
		d.MarkVolumesReportedInUse([]v1.UniqueVolumeName{name})
		require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec(inner), node, "/dev/"+inner))
		require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged/"+inner, ""))
		require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, podName, inner)))
		a.InitializeClaimSize(name, size("1Gi"))
		a.MarkForInUseExpansionError(name)
		a.MarkVolumeExpansionFailedWithFinalError(name)
		require.NotEmpty(t, cache.VolumesInUse(d, a))

		d.DeletePod(volume.UniquePodName(podName))
		require.NoError(t, a.MarkVolumeAsUnmounted(volume.UniquePodName(podName), name))
		require.NoError(t, a.MarkDeviceAsUnmounted(name))
		require.NoError(t, a.DeleteVolume(name))
	}
}
