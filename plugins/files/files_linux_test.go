package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
	"github.com/volumekit/volumekit/volume/ownership"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestConformance(t *testing.T) {
	for name, newConfig := range conformances() {
		t.Run(name, func(t *testing.T) {
			config := newConfig(Options{})
			if !config.PlainDirectory {
				mounttest.RequireMounts(t)
			}
			volumetest.Run(t, config)
		})
	}
}

// setUp sets a volume up and returns its path.
func setUp(t *testing.T, plugin *Plugin, spec *volume.Spec, args volume.MounterArgs) (string, error) {
	t.Helper()
	mounter, err := plugin.NewMounter(spec, newPod())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tearDown(context.WithoutCancel(t.Context()), t, plugin) })
	return mounter.GetPath(), mounter.SetUp(t.Context(), args)
}

func mustSetUp(t *testing.T, plugin *Plugin, spec *volume.Spec, args volume.MounterArgs) string {
	t.Helper()
	path, err := setUp(t, plugin, spec, args)
	require.NoError(t, err)
	return path
}

func tearDown(ctx context.Context, t *testing.T, plugin *Plugin) error {
	t.Helper()
	unmounter, err := plugin.NewUnmounter("files", "pod-1")
	require.NoError(t, err)
	return unmounter.TearDown(ctx)
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(path, &stat))
	return stat
}

func configSpec() *volume.Spec { return inVolume(v1.VolumeSource{ConfigMap: configMap("config")}) }

func secretSpec(key string) *volume.Spec {
	return inVolume(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login", Items: []v1.KeyToPath{{Key: key, Path: key}}}})
}

func TestUpdatesArePublishedAtOnceAndOnlyWhenSomethingHasChanged(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	o := newObjects()
	plugin := start(t, NewConfigMap(o, Options{}))
	path := mustSetUp(t, plugin, configSpec(), volume.MounterArgs{})
	assert.Equal(t, "a=1\n", read(t, filepath.Join(path, "app.conf")))
	assert.EqualValues(t, 0o755, statOf(t, path).Mode&0o7777)
	assert.EqualValues(t, 0o644, statOf(t, filepath.Join(path, "app.conf")).Mode&0o7777)
	set, err := os.Readlink(filepath.Join(path, "..data"))
	require.NoError(t, err)

	mustSetUp(t, plugin, configSpec(), volume.MounterArgs{IsRemount: true})
	same, err := os.Readlink(filepath.Join(path, "..data"))
	require.NoError(t, err)
	assert.Equal(t, set, same)

	o.configMaps["default/config"] = &v1.ConfigMap{Data: map[string]string{"app.conf": "a=2\n"}}
	mustSetUp(t, plugin, configSpec(), volume.MounterArgs{IsRemount: true})
	assert.Equal(t, "a=2\n", read(t, filepath.Join(path, "app.conf")))
	assert.NoFileExists(t, filepath.Join(path, "other"))
	require.NoError(t, tearDown(t.Context(), t, plugin))
	assert.NoDirExists(t, path)
}

func TestNothingIsMadeThroughALinkInTheWay(t *testing.T) {
	mounttest.RequireMounts(t) // where a mistake can reach nothing of the machine
	node := nodeDirectories{mount.New(mount.Options{})}
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	_, err := node.MakeDirectory(t.Context(), filepath.Join(dir, "link", "base"), "name", 0o755)
	require.ErrorIs(t, err, safepath.ErrEscapes)
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestAFailedSetUpLeavesNothingAndAFailedUpdateLeavesAll(t *testing.T) {
	o := newObjects()
	plugin := start(t, NewConfigMap(o, Options{}))
	config := o.configMaps["default/config"]
	bad := &v1.ConfigMap{Data: map[string]string{"..app.conf": "a=2\n"}}
	for what, c := range map[string]struct {
		now  *v1.ConfigMap
		want []error // of an update
	}{
		"it is missing":        {nil, []error{ErrNotFound, volume.ErrTransient}},
		"it cannot be written": {bad, []error{volume.ErrInvalid, volume.ErrUncertain}},
	} {
		set := func(m *v1.ConfigMap) {
			delete(o.configMaps, "default/config")
			if m != nil {
				o.configMaps["default/config"] = m
			}
		}
		set(c.now)
		path, err := setUp(t, plugin, configSpec(), volume.MounterArgs{})
		require.Error(t, err, what)
		require.NotErrorIs(t, err, volume.ErrUncertain, what)
		assert.NoDirExists(t, path, what)

		set(config)
		mustSetUp(t, plugin, configSpec(), volume.MounterArgs{})
		set(c.now)
		_, err = setUp(t, plugin, configSpec(), volume.MounterArgs{IsRemount: true})
		for _, want := range c.want {
			require.ErrorIs(t, err, want, what)
		}
		assert.Equal(t, "a=1\n", read(t, filepath.Join(path, "app.conf")), what)
		require.NoError(t, tearDown(t.Context(), t, plugin))
	}
}

func TestASetUpFinishesWhatACrashHasLeft(t *testing.T) {
	plugin := start(t, NewConfigMap(newObjects(), Options{}))
	path := plugin.host.GetPodVolumeDir("pod-1", ConfigMapName, "files")
	require.NoError(t, os.MkdirAll(path, 0o700), "a kill before the directory was recorded")
	mustSetUp(t, plugin, configSpec(), volume.MounterArgs{})
	require.NoError(t, os.Chmod(path, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "..2026_01_01_00_00_00.1"), 0o700))
	mustSetUp(t, plugin, configSpec(), volume.MounterArgs{})
	assert.EqualValues(t, 0o755, statOf(t, path).Mode&0o7777)
	assert.Equal(t, "x", read(t, filepath.Join(path, "other")))
}

func TestSecretsAreInMemory(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := start(t, NewSecret(newObjects(), Options{}))
	path := mustSetUp(t, plugin, secretSpec("password"), volume.MounterArgs{})
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &fs))
	assert.EqualValues(t, unix.TMPFS_MAGIC, fs.Type)
	assert.NotZero(t, fs.Flags&unix.ST_NOSUID)
	assert.NotZero(t, fs.Flags&unix.ST_NODEV)
	assert.EqualValues(t, 0o755, statOf(t, path).Mode&0o7777)
	assert.Equal(t, secretText, read(t, filepath.Join(path, "password")))
	require.NoError(t, tearDown(t.Context(), t, plugin))
	assert.NoDirExists(t, path)
	_, err := setUp(t, plugin, secretSpec("..bad"), volume.MounterArgs{})
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.NoDirExists(t, path, "the tmpfs of a failed set-up goes")
}

func TestSecretsAppearInNoError(t *testing.T) {
	mounttest.RequireMounts(t)
	o := newObjects()
	secret := start(t, NewSecret(o, Options{}))
	both := start(t, NewProjected(allOf(o), Options{}))
	token := v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "../token"}}
	for _, c := range []struct {
		plugin *Plugin
		spec   *volume.Spec
	}{
		{secret, secretSpec("..bad")},
		{secret, secretSpec("missing")},
		{both, projected(token)},
		{both, projected(token, token)},
	} {
		_, err := setUp(t, c.plugin, c.spec, volume.MounterArgs{})
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	path := mustSetUp(t, secret, secretSpec("password"), volume.MounterArgs{})
	require.NoError(t, os.Remove(filepath.Join(path, "..data")))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "..data", "in-the-way"), 0o755))
	_, err := setUp(t, secret, secretSpec("password"), volume.MounterArgs{})
	require.ErrorIs(t, err, atomicwriter.ErrForeign)
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.NotContains(t, err.Error(), "hunter2")
}

func TestFilesBelongToTheGroup(t *testing.T) {
	mounttest.RequireMounts(t)
	group := int64(4001)
	if os.Chown(t.TempDir(), -1, int(group)) != nil {
		group = int64(os.Getgid()) // an ordinary user has no other
	}
	o := newObjects()
	for _, c := range []struct {
		plugin *Plugin
		spec   *volume.Spec
		file   string
	}{
		{start(t, NewConfigMap(o, Options{})), configSpec(), "other"},
		{start(t, NewProjected(allOf(o), Options{})), projected(v1.VolumeProjection{
			ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "other"},
		}), "other"},
	} {
		mode := map[string]uint32{ConfigMapName: 0o644, ProjectedName: 0o640}[c.plugin.name]
		for range 2 {
			path := mustSetUp(t, c.plugin, c.spec, volume.MounterArgs{FsGroup: &group})
			dir, file := statOf(t, path), statOf(t, filepath.Join(path, c.file))
			assert.EqualValues(t, group, dir.Gid)
			assert.EqualValues(t, 0o2755, dir.Mode&0o7777)
			assert.EqualValues(t, group, file.Gid)
			assert.Equal(t, mode, file.Mode&0o7777)
			var link unix.Stat_t
			require.NoError(t, unix.Lstat(filepath.Join(path, c.file), &link))
			assert.EqualValues(t, group, link.Gid)
		}
	}
	bad := int64(-1)
	_, err := setUp(t, start(t, NewConfigMap(o, Options{})), configSpec(), volume.MounterArgs{FsGroup: &bad})
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestNothingIsPublishedThatTheGroupCannotRead(t *testing.T) {
	dir, notAGroup := t.TempDir(), int64(-1)
	payload := map[string]atomicwriter.FileProjection{"file": {Data: []byte("new"), Mode: 0o600}}
	require.ErrorIs(t, nodeDirectories{}.Publish(t.Context(), dir, payload, &notAGroup), ownership.ErrInvalid)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// bind shows a directory with a canary at target, and returns the canary.
func bind(t *testing.T, target string) string {
	t.Helper()
	canary := filepath.Join(t.TempDir(), "canary")
	require.NoError(t, os.WriteFile(canary, []byte("alive"), 0o600))
	mounter := mount.New(mount.Options{})
	request := mount.Request{Source: filepath.Dir(canary), Target: target, Options: []string{"bind"}}
	require.NoError(t, mounter.Mount(t.Context(), request))
	t.Cleanup(func() { _ = mounter.Unmount(context.WithoutCancel(t.Context()), target, mount.UnmountOptions{}) })
	return canary
}

// sample is a volume and the plugin that serves it.
type sample struct {
	plugin *Plugin
	spec   *volume.Spec
}

// onDiskAndInMemory returns a volume that is a directory, and one that is a mount.
func onDiskAndInMemory(o *objects) []sample {
	return []sample{{NewConfigMap(o, Options{}), configSpec()}, {NewSecret(o, Options{}), secretSpec("password")}}
}

func TestForeignMountsAreLeftAlone(t *testing.T) {
	mounttest.RequireMounts(t)
	o := newObjects()
	for _, c := range onDiskAndInMemory(o) {
		plugin := start(t, c.plugin)
		path := plugin.host.GetPodVolumeDir("pod-1", plugin.name, "files")
		canary := bind(t, path)
		_, err := setUp(t, plugin, c.spec, volume.MounterArgs{})
		require.ErrorIs(t, err, mount.ErrForeign)
		require.NotErrorIs(t, err, volume.ErrUncertain)
		require.ErrorIs(t, tearDown(t.Context(), t, plugin), mount.ErrForeign)
		assert.FileExists(t, canary)
		assert.FileExists(t, filepath.Join(path, "canary"))
		require.NoError(t, mount.New(mount.Options{}).Unmount(t.Context(), path, mount.UnmountOptions{}))
	}
}

func TestNothingIsRemovedWhereSomethingIsMountedInside(t *testing.T) {
	mounttest.RequireMounts(t)
	o := newObjects()
	for _, c := range onDiskAndInMemory(o) {
		plugin := start(t, c.plugin)
		path := mustSetUp(t, plugin, c.spec, volume.MounterArgs{})
		inside := filepath.Join(path, "inside")
		canary := bind(t, inside)
		require.ErrorIs(t, tearDown(t.Context(), t, plugin), volume.ErrInUse)
		assert.FileExists(t, canary)
		assert.FileExists(t, filepath.Join(path, "..data"))
		require.NoError(t, mount.New(mount.Options{}).Unmount(t.Context(), inside, mount.UnmountOptions{}))
		require.NoError(t, tearDown(t.Context(), t, plugin))
		assert.NoDirExists(t, path)
	}
}

func TestASetUpThatCannotMountLeavesNothing(t *testing.T) {
	broken := errors.New("no memory")
	plugin := start(t, NewSecret(newObjects(), Options{Mounter: failing{mount.New(mount.Options{}), broken}}))
	path, err := setUp(t, plugin, secretSpec("password"), volume.MounterArgs{})
	require.ErrorIs(t, err, broken)
	assert.NoDirExists(t, path)
}

// failing mounts nothing.
type failing struct {
	mount.Interface
	err error
}

func (f failing) Mount(context.Context, mount.Request) error { return f.err }

// A whole tmpfs is no proof: a secret is written to, and unmounted from, the one alone that SetUp has mounted.
func TestForeignTmpfsInPlaceOfASecretIsNeitherFilledNorUnmounted(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := start(t, NewSecret(newObjects(), Options{}))
	path := mustSetUp(t, plugin, secretSpec("password"), volume.MounterArgs{})
	require.NoError(t, unix.Unmount(path, 0))
	require.NoError(t, unix.Mount("tmpfs", path, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })

	_, err := setUp(t, plugin, secretSpec("password"), volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrForeign)
	assert.NoFileExists(t, filepath.Join(path, "password"))
	require.ErrorIs(t, tearDown(t.Context(), t, plugin), mount.ErrForeign)

	require.NoError(t, unix.Unmount(path, 0), "it is still there")
	require.NoError(t, tearDown(t.Context(), t, plugin))
	assert.NoDirExists(t, path)
}

func TestOnlyADirectoryThatSetUpMadeIsFilledAndRemoved(t *testing.T) {
	plugin := start(t, NewConfigMap(newObjects(), Options{}))
	path := mustSetUp(t, plugin, configSpec(), volume.MounterArgs{})
	_, err := plugin.ConstructVolumeSpec("files", path)
	require.NoError(t, err)
	require.NoError(t, os.Rename(path, path+"-moved"))
	require.NoError(t, os.Mkdir(path, 0o700))
	precious := filepath.Join(path, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))

	_, err = setUp(t, plugin, configSpec(), volume.MounterArgs{})
	require.ErrorIs(t, err, owned.ErrUnproven)
	require.ErrorIs(t, tearDown(t.Context(), t, plugin), owned.ErrUnproven)
	_, err = plugin.ConstructVolumeSpec("files", path)
	require.ErrorIs(t, err, owned.ErrUnproven)
	_, err = plugin.ConstructVolumeSpec("files-moved", path+"-moved")
	require.ErrorIs(t, err, owned.ErrUnproven, "it is the directory of another volume")
	assert.FileExists(t, precious)

	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, os.Rename(path+"-moved", path))
	require.NoError(t, tearDown(t.Context(), t, plugin))
	assert.NoDirExists(t, path)
	entries, err := os.ReadDir(plugin.host.GetPodPluginDir("pod-1", ConfigMapName))
	require.NoError(t, err)
	assert.Empty(t, entries, "no proof is left")
}
