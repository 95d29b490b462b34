package cache_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// able is a plugin that grows volumes on the node and mounts them with an SELinux context.
type able struct {
	cachetest.Plugin
	grows, context bool
}

func (p *able) RequiresFSResize() bool                                 { return p.grows }
func (p *able) SupportsSELinuxContextMount(*volume.Spec) (bool, error) { return p.context, nil }
func (p *able) NodeExpand(context.Context, volume.NodeResizeOptions) (bool, error) {
	return false, errors.ErrUnsupported
}

func size(s string) resource.Quantity { return resource.MustParse(s) }

// TestWhatAVolumeNeedsBeforeAPodCanUseIt goes through every answer in the order in which they count.
func TestWhatAVolumeNeedsBeforeAPodCanUseIt(t *testing.T) {
	p := &able{Plugin: cachetest.Plugin{Remount: true}, grows: true, context: true}
	a := cache.NewActualStateOfWorld(node, cachetest.NewPlugins(t, p), cache.Options{})
	name := cachetest.Shared("s1")
	wanted, label := resource.Quantity{}, ""
	ask := func() (bool, string, error) { return a.PodExistsInVolume("p", name, wanted, label) }
	needs := func(mounted bool, target error) {
		t.Helper()
		got, devicePath, err := ask()
		assert.Equal(t, mounted, got)
		require.ErrorIs(t, err, target)
		if target != cache.ErrNotAttached { //nolint:errorlint // Which of the sentinels was given.
			assert.Equal(t, "/dev/s1", devicePath)
		}
	}

	needs(false, cache.ErrNotAttached)
	require.NoError(t, a.MarkVolumeAsUncertain(name, cachetest.Spec("s1"), node))
	needs(false, cache.ErrNotAttached)
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, "/dev/s1"))
	needs(false, nil)
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged", "context"))
	needs(false, cache.ErrSELinuxMismatch)
	label = "context"
	needs(false, nil)
	require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")))
	needs(false, nil)
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	needs(true, nil)

	a.InitializeClaimSize(name, size("1Gi"))
	wanted = size("2Gi")
	_, _, err := ask()
	var grow *cache.FsResizeRequiredError
	require.ErrorAs(t, err, &grow)
	assert.Equal(t, "1Gi 2Gi", grow.CurrentSize.String()+" "+grow.DesiredSize.String())
	needs(true, cache.ErrFsResizeRequired)
	a.MarkRemountRequired("p")
	needs(true, cache.ErrRemountRequired)
	require.NoError(t, a.MarkDeviceAsUncertain(name, "", "", ""))
	needs(false, nil) // It has to be staged again.
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "", "context"))
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	needs(true, cache.ErrFsResizeRequired)
	wanted = size("1Gi")
	needs(true, nil)
}

func TestAVolumeIsGrownOnlyWhereThatCanWork(t *testing.T) {
	grown := func(t *testing.T, p *able, change func(a *cache.ActualStateOfWorld, name v1.UniqueVolumeName)) error {
		t.Helper()
		a := cache.NewActualStateOfWorld(node, cachetest.NewPlugins(t, p), cache.Options{})
		name := cachetest.Shared("s1")
		require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
		require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged", ""))
		require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
		change(a, name)
		_, _, err := a.PodExistsInVolume("p", name, size("2Gi"), "")
		return err
	}
	known := func(a *cache.ActualStateOfWorld, name v1.UniqueVolumeName) { a.InitializeClaimSize(name, size("1Gi")) }
	require.ErrorIs(t, grown(t, &able{grows: true}, known), cache.ErrFsResizeRequired)
	require.NoError(t, grown(t, &able{}, known), "the plugin does not")
	require.NoError(t, grown(t, &able{grows: true}, func(*cache.ActualStateOfWorld, v1.UniqueVolumeName) {}), "its size is not known")
	require.NoError(t, grown(t, &able{grows: true}, func(a *cache.ActualStateOfWorld, name v1.UniqueVolumeName) {
		known(a, name)
		a.MarkForInUseExpansionError(name)
		assert.True(t, a.MarkVolumeAsResized(name, size("1500Mi")), "that changes nothing about the plugin")
	}), "it cannot be grown while it is used")
}

func TestTheBooksOfSizesGoWithTheVolume(t *testing.T) {
	a, told := newActual(t, &cachetest.Plugin{})
	name := cachetest.Shared("s1")
	assert.False(t, a.MarkVolumeAsResized(name, size("1Gi")))
	a.InitializeClaimSize(name, size("1Gi"))
	a.MarkForInUseExpansionError(name)
	assert.Empty(t, told.take(), "nothing is kept of a volume that is not known")

	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	told.take()
	a.InitializeClaimSize(name, size("1Gi"))
	a.InitializeClaimSize(name, size("5Gi"))
	assert.Equal(t, []v1.UniqueVolumeName{name}, told.take(), "a known size stays, and no change is reported")
	assert.Equal(t, size("1Gi"), a.GetClaimSize(name))
	a.MarkVolumeExpansionFailedWithFinalError(name)
	assert.True(t, a.CheckVolumeInFailedExpansionWithFinalErrors(name))
	assert.True(t, a.MarkVolumeAsResized(name, size("2Gi")))
	assert.False(t, a.CheckVolumeInFailedExpansionWithFinalErrors(name), "it has succeeded since")
	a.MarkVolumeExpansionFailedWithFinalError(name)
	a.RemoveVolumeFromFailedWithFinalErrors(name)
	assert.False(t, a.CheckVolumeInFailedExpansionWithFinalErrors(name))
	a.MarkForInUseExpansionError(name)
	a.MarkVolumeExpansionFailedWithFinalError(name)
	assert.True(t, a.HasInUseExpansionError(name))
	row, _ := a.GetAttachedVolume(name)
	assert.Equal(t, size("2Gi"), row.ClaimSize)

	require.NoError(t, a.DeleteVolume(name))
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	assert.False(t, a.HasInUseExpansionError(name))
	assert.False(t, a.CheckVolumeInFailedExpansionWithFinalErrors(name))
	claimSize := a.GetClaimSize(name)
	assert.True(t, claimSize.IsZero())
}

// TestAVolumeIsInUseFromTheIntentToTheLastTrace follows one volume through its life.
func TestAVolumeIsInUseFromTheIntentToTheLastTrace(t *testing.T) {
	plugins := cachetest.NewPlugins(t, &cachetest.Plugin{})
	d, a := cache.NewDesiredStateOfWorld(plugins, cache.Options{}), cache.NewActualStateOfWorld(node, plugins, cache.Options{})
	name, inUse := cachetest.Shared("s1"), []v1.UniqueVolumeName{cachetest.Shared("s1")}
	add(t, d, "p", "own", "tmp")
	assert.Empty(t, cache.VolumesInUse(d, a), "what is not attached is not listed")
	add(t, d, "p", "s1", "data")
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, "") },
		func() error { return a.MarkDeviceAsUncertain(name, "", "/staged", "") },
		func() error { d.DeletePod("p"); return nil }, // while it is formatted, say
		func() error { return a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")) },
		func() error { return a.MarkVolumeAsUnmounted("p", name) },
		func() error { return a.MarkDeviceAsUnmounted(name) },
		func() error { return a.MarkVolumeAsUncertain(name, nil, node) },
	} {
		require.NoError(t, step())
		assert.Equal(t, inUse, cache.VolumesInUse(d, a))
	}
	require.NoError(t, a.DeleteVolume(name))
	assert.Empty(t, cache.VolumesInUse(d, a))
	assert.Empty(t, d.GetAttachableVolumeNames())
}

func TestVolumesInUseAreSortedAndListedOnce(t *testing.T) {
	plugins := cachetest.NewPlugins(t, &cachetest.Plugin{})
	d, a := cache.NewDesiredStateOfWorld(plugins, cache.Options{}), cache.NewActualStateOfWorld(node, plugins, cache.Options{})
	add(t, d, "p", "s3", "x")
	add(t, d, "p", "s1", "y")
	for _, name := range []string{"s2", "s3"} {
		require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared(name), cachetest.Spec(name), node, ""))
	}
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1"), cachetest.Shared("s2"), cachetest.Shared("s3")}, cache.VolumesInUse(d, a))
}

func TestASetUpTellsWhereItsDeviceIsNow(t *testing.T) {
	a, name, _ := newStaged(t)
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, "/dev/other"))
	row, _ := a.GetMountedVolume(name, "p")
	assert.Equal(t, "/dev/other", row.DevicePath)
	assert.Equal(t, "/staged/s1", row.DeviceMountPath)
}

func TestWhatAPluginCanDoIsAskedAnew(t *testing.T) {
	p := &able{}
	plugins := cachetest.NewPlugins(t, p)
	d, a := cache.NewDesiredStateOfWorld(plugins, cache.Options{}), cache.NewActualStateOfWorld(node, plugins, cache.Options{})
	name := add(t, d, "p", "s1", "data")
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged", ""))
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	a.MarkRemountRequired("p")
	row, _ := a.GetMountedVolume(name, "p")
	assert.False(t, row.RemountRequired)
	p.Remount = true
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	a.MarkRemountRequired("p")
	row, _ = a.GetMountedVolume(name, "p")
	assert.True(t, row.RemountRequired)

	d.RefreshPlugin(cachetest.PluginName)
	wanted, _ := d.VolumeToMount(name, "p")
	assert.True(t, wanted.PluginIsAttachable, "the plugin says so")
	assert.Equal(t, []v1.UniqueVolumeName{name}, d.GetVolumeNamesOfPlugin(cachetest.PluginName))
	assert.Len(t, a.GetVolumesOfPlugin(cachetest.PluginName), 1)
	assert.Empty(t, a.GetVolumesOfPlugin("example.com/other"))
}

// TestAPluginIsAskedLateOfWhatARestartFound: it may not have been registered when that was found.
func TestAPluginIsAskedLateOfWhatARestartFound(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{Remount: true})
	name := cachetest.Shared("pods/p/own")
	require.NoError(t, a.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: name, VolumeSpec: cachetest.Spec("own")}))
	_, err := a.AddReconstructedPod(mountedFor(name, "p", "own"))
	require.NoError(t, err)
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "own")))
	a.MarkRemountRequired("p")
	row, _ := a.GetMountedVolume(name, "p")
	assert.True(t, row.RemountRequired)
}

// TestAContextStaysWhileItMayBeMounted: a failed teardown says nothing of it.
func TestAContextStaysWhileItMayBeMounted(t *testing.T) {
	a, _ := newActual(t, &cachetest.Plugin{})
	name := cachetest.Shared("s1")
	require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.Spec("s1"), node, ""))
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "/staged", "context"))
	label := func() string {
		row, _ := a.GetAttachedVolume(name)
		return row.SELinuxMountContext
	}
	require.NoError(t, a.MarkDeviceAsUncertain(name, "", "", ""))
	assert.Equal(t, "context", label())
	require.NoError(t, a.MarkDeviceAsMounted(name, "", "", ""))
	assert.Empty(t, label(), "it was mounted without")
	o := mountedFor(name, "p", "s1")
	o.SELinuxMountContext = "context"
	require.NoError(t, a.MarkVolumeAsMounted(o))
	require.NoError(t, a.MarkVolumeMountAsUncertain(mountedFor(name, "p", "s1")))
	m, _ := a.GetMountedVolume(name, "p")
	assert.Equal(t, "context", m.SELinuxMountContext)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, m.State, "it only may be mounted")
}

func TestWhatHasNoContextNeverDiffers(t *testing.T) {
	a, name, _ := newStaged(t)
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	mounted, _, err := a.PodExistsInVolume("p", name, resource.Quantity{}, "context")
	require.NoError(t, err, "the plugin mounts with none")
	assert.True(t, mounted)
}

func TestASetUpThatSucceededHasTheContextThatItWasGiven(t *testing.T) {
	a, name, _ := newStaged(t)
	o := mountedFor(name, "p", "s1")
	o.SELinuxMountContext = "context"
	require.NoError(t, a.MarkVolumeMountAsUncertain(o))
	require.NoError(t, a.MarkVolumeAsMounted(mountedFor(name, "p", "s1")))
	m, _ := a.GetMountedVolume(name, "p")
	assert.Empty(t, m.SELinuxMountContext)
}
