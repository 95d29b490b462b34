package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// afterwards returns a context for clean-up, which runs after the test's own context has ended.
func afterwards(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func stage(t *testing.T, plugin *Plugin, spec *volume.Spec) error {
	t.Helper()
	path, err := (&stager{plugin}).GetDeviceMountPath(spec)
	require.NoError(t, err)
	t.Cleanup(func() { _ = (&stager{plugin}).UnmountDevice(afterwards(t), path) })
	return (&stager{plugin}).MountDevice(t.Context(), spec, "", path, volume.DeviceMounterArgs{})
}

func setUp(t *testing.T, plugin *Plugin, spec *volume.Spec, uid types.UID, args volume.MounterArgs) (string, error) {
	t.Helper()
	mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = plugin.unmountOwn(afterwards(t), mounter.GetPath()) })
	return mounter.GetPath(), mounter.SetUp(t.Context(), args)
}

func mustSetUp(t *testing.T, plugin *Plugin, spec *volume.Spec, uid types.UID, args volume.MounterArgs) string {
	t.Helper()
	path, err := setUp(t, plugin, spec, uid, args)
	require.NoError(t, err)
	return path
}

func tearDown(t *testing.T, plugin *Plugin, spec *volume.Spec, uid types.UID) {
	t.Helper()
	unmounter, err := plugin.NewUnmounter(spec.Name(), uid)
	require.NoError(t, err)
	require.NoError(t, unmounter.TearDown(t.Context()))
}

func statOf(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t)
}

// bind makes a bind mount of source at target.
func bind(t *testing.T, source, target string) {
	t.Helper()
	mounter := mount.New(mount.Options{})
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: source, Target: target, Options: []string{"bind"}}))
	t.Cleanup(func() { _ = mounter.Unmount(afterwards(t), target, mount.UnmountOptions{}) })
}

func TestContentOfADirectoryStays(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	spec := specOf(pvOf(link, "noexec"))
	require.NoError(t, stage(t, plugin, spec), "the links of an operator are followed")
	path := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o600))
	there, _, err := plugin.mountAt(t.Context(), path)
	require.NoError(t, err)
	assert.Contains(t, there.Options, "noexec")
	tearDown(t, plugin, spec, "pod-1")
	require.NoError(t, (&stager{plugin}).UnmountDevice(t.Context(), plugin.stagingPath("disk")))
	content, err := os.ReadFile(filepath.Join(dir, "file"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
}

func TestOwnDirectoriesAreRefusedFromAboveBelowAndThroughLinks(t *testing.T) {
	other := t.TempDir()
	plugin, root := newPlugin(t, Options{Protected: []string{other}})
	require.NoError(t, os.MkdirAll(filepath.Join(root, "pods"), 0o755))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Dir(root), link))
	for _, path := range []string{"/", root, filepath.Dir(root), filepath.Join(root, "pods"), link, filepath.Join(link, "node"), other} {
		err := stage(t, plugin, specOf(pvOf(path)))
		require.ErrorIs(t, err, volume.ErrInvalid, path)
		require.ErrorContains(t, err, "use another path", path)
	}
}

func TestWhatIsNeitherDirectoryNorBlockDeviceIsRefused(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, os.DevNull} {
		require.ErrorIs(t, stage(t, plugin, specOf(pvOf(path))), volume.ErrInvalid, path)
	}
	require.ErrorIs(t, stage(t, plugin, specOf(pvOf(file+"-missing"))), os.ErrNotExist)
}

func TestALinkThatComesIntoThePathAfterTheLookIsNotFollowed(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	dir := t.TempDir()
	require.NoError(t, os.Symlink("/etc", filepath.Join(dir, "a")))
	for _, path := range []string{filepath.Join(dir, "a"), filepath.Join(dir, "a", "ssl")} {
		require.Error(t, plugin.bindDirectory(t.Context(), source{}, target{path: path}, plugin.stagingPath("disk")), path)
		assert.NoDirExists(t, plugin.stagingPath("disk"))
	}
}

func TestAPodGetsNothingThatIsNotStaged(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	dir, other := t.TempDir(), t.TempDir()
	spec := specOf(pvOf(dir))
	require.NoError(t, os.MkdirAll(plugin.stagingPath("disk"), 0o755)) // After a reboot the directory is there without its mount.
	_, err := setUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	require.ErrorIs(t, err, ErrNotStaged)

	require.NoError(t, stage(t, plugin, spec))
	first := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	bind(t, other, dir) // now another disk is mounted there
	path, err := setUp(t, plugin, spec, "pod-2", volume.MounterArgs{})
	require.ErrorIs(t, err, ErrNotStaged)
	assert.NoDirExists(t, path)
	assert.DirExists(t, first)
	require.ErrorIs(t, stage(t, plugin, spec), mount.ErrForeign)
}

func TestForeignMountsAreLeftAlone(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	foreign := t.TempDir()
	spec := specOf(pvOf(t.TempDir()))
	bind(t, foreign, plugin.stagingPath("disk"))
	require.ErrorIs(t, stage(t, plugin, spec), mount.ErrForeign)
	require.NoError(t, plugin.mount.Unmount(t.Context(), plugin.stagingPath("disk"), mount.UnmountOptions{}))

	require.NoError(t, stage(t, plugin, spec))
	target := plugin.host.GetPodVolumeDir("pod-1", Name, "disk")
	bind(t, foreign, target)
	_, err := setUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrForeign)
	require.NoError(t, plugin.mount.Unmount(t.Context(), target, mount.UnmountOptions{}))

	mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	readOnly := volume.NewSpecFromPersistentVolume(spec.PersistentVolume, true)
	_, err = setUp(t, plugin, readOnly, "pod-1", volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrForeign, "it is mounted writable")
}

func TestReferencesAreThoseOfThePodsOfTheVolume(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	dir := t.TempDir()
	bind(t, dir, dir) // the operator's own mount of the directory
	spec, twin := specOf(pvOf(dir)), pvOf(dir)
	twin.Name = "twin"
	for _, s := range []*volume.Spec{spec, specOf(twin)} {
		require.NoError(t, stage(t, plugin, s))
	}
	path := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	mustSetUp(t, plugin, specOf(twin), "pod-2", volume.MounterArgs{})
	refs, err := plugin.GetDeviceMountRefs(t.Context(), plugin.stagingPath("disk"))
	require.NoError(t, err)
	assert.Equal(t, []string{path}, refs)
}

// events keeps the events of a plugin.
type events []string

func (e *events) Eventf(_ runtime.Object, eventtype, reason, format string, args ...any) {
	*e = append(*e, eventtype+" "+reason+" "+fmt.Sprintf(format, args...))
}

func TestTheVolumeHasOneGroupAtATime(t *testing.T) {
	mounttest.RequireRoot(t) // to change groups
	var told events
	plugin, root := newPlugin(t, Options{Events: &told})
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	spec := specOf(pvOf(dir))
	require.NoError(t, stage(t, plugin, spec))
	one, two := int64(4001), int64(4002)

	readOnly := volume.NewSpecFromPersistentVolume(spec.PersistentVolume, true)
	mustSetUp(t, plugin, readOnly, "pod-1", volume.MounterArgs{FsGroup: &one})
	assert.Zero(t, statOf(t, file).Gid, "for a pod that may not write nothing is changed")
	tearDown(t, plugin, readOnly, "pod-1")

	mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{FsGroup: &one})
	assert.EqualValues(t, one, statOf(t, file).Gid)
	assert.EqualValues(t, 0o660, statOf(t, file).Mode&0o7777)
	mustSetUp(t, plugin, spec, "pod-2", volume.MounterArgs{FsGroup: &one})
	assert.Empty(t, told, "the group is the same")

	mustSetUp(t, plugin, spec, "pod-3", volume.MounterArgs{FsGroup: &two})
	assert.EqualValues(t, one, statOf(t, file).Gid, "others use it")
	require.Len(t, told, 1)
	assert.Contains(t, told[0], `Warning AlreadyMountedVolume volume "disk" belongs to group 4001`)

	tearDown(t, plugin, spec, "pod-1")
	tearDown(t, plugin, spec, "pod-2")
	restarted := pluginAt(t, root, Options{Events: &told})
	mustSetUp(t, restarted, spec, "pod-3", volume.MounterArgs{FsGroup: &two, IsRemount: true})
	assert.EqualValues(t, one, statOf(t, file).Gid, "a refresh changes nothing")
	mustSetUp(t, restarted, spec, "pod-3", volume.MounterArgs{FsGroup: &two})
	assert.EqualValues(t, two, statOf(t, file).Gid, "it has the volume alone now")
	assert.Len(t, told, 1)

	bad := int64(-1)
	_, err := setUp(t, plugin, spec, "pod-4", volume.MounterArgs{FsGroup: &bad})
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestABusyVolumeIsInUse(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	spec := specOf(pvOf(t.TempDir()))
	require.NoError(t, stage(t, plugin, spec))
	path := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	open, err := os.Open(path)
	require.NoError(t, err)
	unmounter, err := plugin.NewUnmounter("disk", "pod-1")
	require.NoError(t, err)
	require.ErrorIs(t, unmounter.TearDown(t.Context()), volume.ErrInUse)
	require.NoError(t, open.Close())
	require.NoError(t, unmounter.TearDown(t.Context()))
}
