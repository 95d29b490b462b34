package emptydir

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func config(medium v1.StorageMedium) volumetest.Config {
	mounter := mount.New(mount.Options{})
	return volumetest.Config{
		NewPlugin:      func(testing.TB) volume.VolumePlugin { return New(Options{Mounter: mounter}) },
		NewSpec:        func(testing.TB) *volume.Spec { return named(medium) },
		Require:        volume.CapReconstruct,
		FSGroup:        true,
		PlainDirectory: medium == v1.StorageMediumDefault,
	}
}

// counter makes names.
var counter atomic.Int64

func named(medium v1.StorageMedium) *volume.Spec {
	s := spec(medium, "16Mi")
	s.Volume.Name = "scratch-" + strconv.FormatInt(counter.Add(1), 10)
	return s
}

func TestConformanceOfDirectories(t *testing.T) { volumetest.Run(t, config(v1.StorageMediumDefault)) }

func TestConformanceOfMemory(t *testing.T) {
	mounttest.RequireMounts(t)
	volumetest.Run(t, config(v1.StorageMediumMemory))
}

func BenchmarkDirectory(b *testing.B) { volumetest.RunBenchmarks(b, config(v1.StorageMediumDefault)) }

// setUp sets a volume up and returns its path.
func setUp(t *testing.T, plugin *Plugin, s *volume.Spec, args volume.MounterArgs) (string, error) {
	t.Helper()
	mounter, err := plugin.NewMounter(s, pod)
	require.NoError(t, err)
	return mounter.GetPath(), mounter.SetUp(t.Context(), args)
}

func mustSetUp(t *testing.T, plugin *Plugin, s *volume.Spec, args volume.MounterArgs) string {
	t.Helper()
	path, err := setUp(t, plugin, s, args)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tearDown(t, newLike(plugin)) })
	return path
}

// newLike is the plugin after a restart.
func newLike(p *Plugin) *Plugin { return &Plugin{host: p.host, mount: p.mount} }

func tearDown(t *testing.T, plugin *Plugin) error {
	t.Helper()
	unmounter, err := plugin.NewUnmounter("scratch", pod.UID)
	require.NoError(t, err)
	return unmounter.TearDown(afterwards(t))
}

// afterwards is a context for clean-up too, which runs when that of the test has ended.
func afterwards(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Lstat(path, &stat))
	return stat
}

func TestEverybodyMayWriteWhateverTheUmask(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	path := mustSetUp(t, newPlugin(t), spec("", ""), volume.MounterArgs{})
	assert.EqualValues(t, 0o777, statOf(t, path).Mode&0o7777)
}

func TestMemoryIsATmpfsOfTheRightSizeAndMode(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	group := int64(os.Getgid())
	path := mustSetUp(t, plugin, spec("Memory", "2Mi"), volume.MounterArgs{FsGroup: &group})
	stat := statOf(t, path)
	assert.EqualValues(t, 0o2777, stat.Mode&0o7777)
	assert.EqualValues(t, group, stat.Gid)
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &fs))
	assert.EqualValues(t, unix.TMPFS_MAGIC, fs.Type)
	assert.EqualValues(t, 2<<20, int64(fs.Blocks)*int64(fs.Bsize)) //nolint:unconvert // narrower elsewhere
	assert.NotZero(t, fs.Flags&unix.ST_NOSUID, "nosuid")
	assert.NotZero(t, fs.Flags&unix.ST_NODEV, "nodev")
	require.ErrorIs(t, os.WriteFile(filepath.Join(path, "big"), make([]byte, 3<<20), 0o600), unix.ENOSPC)
	require.NoError(t, tearDown(t, newLike(plugin)))
	assert.NoDirExists(t, path)

	less := resource.MustParse("1Mi")
	path = mustSetUp(t, plugin, spec("Memory", "2Mi"), volume.MounterArgs{DesiredSize: &less})
	require.NoError(t, unix.Statfs(path, &fs))
	assert.EqualValues(t, 1<<20, int64(fs.Blocks)*int64(fs.Bsize), "what the pod may have in memory") //nolint:unconvert // likewise
}

func TestDirectoryBelongsToTheGroup(t *testing.T) {
	group := int64(os.Getgid())
	path := mustSetUp(t, newPlugin(t), spec("", ""), volume.MounterArgs{FsGroup: &group})
	assert.EqualValues(t, 0o2777, statOf(t, path).Mode&0o7777)
	require.NoError(t, os.Mkdir(filepath.Join(path, "below"), 0o700))
	assert.EqualValues(t, group, statOf(t, filepath.Join(path, "below")).Gid)
}

func TestNumberThatIsNoGroupIsRefusedBeforeAnythingIsMade(t *testing.T) {
	for _, group := range []int64{-1, 1<<32 - 1, 1 << 40} {
		path, err := setUp(t, newPlugin(t), spec("", ""), volume.MounterArgs{FsGroup: &group})
		require.ErrorIs(t, err, volume.ErrInvalid)
		assert.NoDirExists(t, filepath.Dir(path))
	}
}

func TestFailedSetUpLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(parent, "scratch"), []byte("in the way"), 0o600))
	dir, err := os.Open(parent)
	require.NoError(t, err)
	defer dir.Close()
	require.ErrorIs(t, makeDirectory(dir, filepath.Join(parent, "scratch"), nil, recorded), unix.EEXIST)
	fd := int(dir.Fd())
	made, err := prepare(fd, ".setting-up-scratch", nil)
	require.NoError(t, err)
	require.NoError(t, made.Close())
	require.NoError(t, unprepare(fd, ".setting-up-scratch"))
	require.NoError(t, unprepare(fd, ".setting-up-scratch"), "gone already")
	entries, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.Equal(t, "scratch", entries[0].Name())
}

func TestNothingIsMadeThroughALinkInAParent(t *testing.T) {
	mounttest.RequireMounts(t) // where a mistake can reach nothing of the machine
	for _, medium := range []v1.StorageMedium{v1.StorageMediumDefault, v1.StorageMediumMemory} {
		for above := range 4 { // of {pod}/volumes/{plugin}/{volume}
			plugin, outside := newPlugin(t), t.TempDir()
			dir := plugin.host.GetPodVolumeDir(pod.UID, Name, "scratch")
			for range above {
				dir = filepath.Dir(dir)
			}
			require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o750))
			require.NoError(t, os.Symlink(outside, dir))
			_, err := setUp(t, plugin, spec(medium, ""), volume.MounterArgs{})
			require.Error(t, err, "%q %s", medium, dir)
			entries, err := os.ReadDir(outside)
			require.NoError(t, err)
			assert.Empty(t, entries, "%q %s", medium, dir)
		}
	}
}

func TestSetUpFinishesWhatACrashLeftAndKeepsWhatAWorkloadChanged(t *testing.T) {
	plugin := newPlugin(t)
	path := plugin.host.GetPodVolumeDir(pod.UID, Name, "scratch")
	require.NoError(t, os.MkdirAll(partial(path), 0o700))
	require.Equal(t, path, mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{}))
	assert.EqualValues(t, 0o777, statOf(t, path).Mode&0o7777)
	assert.NoDirExists(t, partial(path))

	require.NoError(t, os.Chmod(path, 0o700))
	mustSetUp(t, newLike(plugin), spec("", ""), volume.MounterArgs{})
	assert.EqualValues(t, 0o700, statOf(t, path).Mode&0o7777, "the workload's own mode")
}

func TestTearDownRemovesAnUnfinishedSetUp(t *testing.T) {
	plugin := newPlugin(t)
	path := plugin.host.GetPodVolumeDir(pod.UID, Name, "scratch")
	require.NoError(t, os.MkdirAll(partial(path), 0o700))
	require.NoError(t, tearDown(t, plugin))
	assert.NoDirExists(t, partial(path))
}

func TestTearDownDeletesEverythingAndFollowsNoLink(t *testing.T) {
	mounttest.RequireMounts(t) // where a mistake can reach nothing of the machine
	plugin := newPlugin(t)
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	require.NoError(t, os.WriteFile(canary, []byte("alive"), 0o600))
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})

	require.NoError(t, os.Symlink(outside, filepath.Join(path, "to-directory")))
	require.NoError(t, os.Symlink(canary, filepath.Join(path, "to-file")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(path, "dangling")))
	require.NoError(t, os.Link(canary, filepath.Join(path, "hard")))
	require.NoError(t, unix.Mkfifo(filepath.Join(path, "pipe"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "a", "b", "c"), 0o755))
	require.NoError(t, os.Symlink("../../../../../../..", filepath.Join(path, "a", "b", "up")))
	for i := range 600 {
		require.NoError(t, os.WriteFile(filepath.Join(path, "a", "file"+strings.Repeat("y", i%200)+string(rune('0'+i/200))), nil, 0o600))
	}

	require.NoError(t, tearDown(t, plugin))
	assert.NoDirExists(t, path)
	content, err := os.ReadFile(canary)
	require.NoError(t, err)
	assert.Equal(t, "alive", string(content))
}

func TestTearDownOfADeepTreeKeepsFewDirectoriesOpen(t *testing.T) {
	mounttest.RequireMounts(t) // as above
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	const depth = 500
	fd, err := unix.Open(path, openFlags, 0)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", openFlags, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	require.NoError(t, unix.Close(fd))

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = 128
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	require.NoError(t, tearDown(t, plugin))
	assert.NoDirExists(t, path)
}

// bind mounts a directory with a canary inside the volume and returns the canary.
func bind(t *testing.T, plugin *Plugin, target string) string {
	t.Helper()
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	require.NoError(t, os.WriteFile(canary, []byte("alive"), 0o600))
	require.NoError(t, os.MkdirAll(target, 0o755))
	require.NoError(t, plugin.mount.Mount(t.Context(), mount.Request{Source: outside, Target: target, Options: []string{"bind"}}))
	t.Cleanup(func() { _ = plugin.mount.Unmount(afterwards(t), target, mount.UnmountOptions{}) })
	return canary
}

func TestTearDownTouchesNothingWhereSomethingIsMountedInside(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	canary := bind(t, plugin, filepath.Join(path, "z", "inside"))
	require.NoError(t, os.WriteFile(filepath.Join(path, "a-file"), nil, 0o600))

	require.ErrorIs(t, tearDown(t, plugin), volume.ErrInUse)
	assert.FileExists(t, canary)
	assert.FileExists(t, filepath.Join(path, "a-file"), "nothing at all is deleted")

	require.NoError(t, plugin.mount.Unmount(t.Context(), filepath.Join(path, "z", "inside"), mount.UnmountOptions{}))
	require.NoError(t, tearDown(t, plugin))
	assert.NoDirExists(t, path)
	assert.FileExists(t, canary)
}

// blind is a mounter whose mount table was read before the mount was made.
type blind struct{ mount.Interface }

func (blind) List(context.Context) ([]mount.MountPoint, error) { return nil, nil }

func TestTearDownEntersNoMountEvenOfTheSameFilesystem(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	canary := bind(t, plugin, filepath.Join(path, "inside"))
	blinded := newLike(plugin)
	blinded.mount = blind{plugin.mount}
	require.ErrorIs(t, tearDown(t, blinded), volume.ErrInUse)
	assert.FileExists(t, canary)
}

// NFS has no rename that replaces nothing, and a FUSE filesystem whose server has once said so.
func TestVolumeOnAFilesystemThatCanOnlyRenamePlainly(t *testing.T) {
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{})
	path := filepath.Join(f.Path(), "scratch")
	require.NoError(t, os.Mkdir(f.Path()+"/from", 0o755))
	f.Fail(mounttest.FUSERename, unix.ENOSYS)
	unsupported := unix.Renameat2(unix.AT_FDCWD, f.Path()+"/from", unix.AT_FDCWD, f.Path()+"/to", unix.RENAME_NOREPLACE)
	require.ErrorIs(t, unsupported, unix.EINVAL)
	f.Heal()
	parent, err := os.Open(f.Path())
	require.NoError(t, err)
	defer parent.Close()
	require.NoError(t, makeDirectory(parent, path, nil, recorded))
	assert.EqualValues(t, 0o777, statOf(t, path).Mode&0o7777)
}

func recorded(*os.File) error { return nil }

func TestTearDownOfMemoryWithAMountInsideIsRefused(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("Memory", ""), volume.MounterArgs{})
	canary := bind(t, plugin, filepath.Join(path, "inside"))
	err := tearDown(t, plugin)
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorIs(t, err, syscall.EBUSY)
	assert.FileExists(t, canary)
}

func TestForeignMountAtThePathIsLeftAlone(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	for _, medium := range []v1.StorageMedium{"", "Memory"} {
		path := plugin.host.GetPodVolumeDir(pod.UID, Name, "scratch")
		canary := bind(t, plugin, path)
		_, err := setUp(t, plugin, spec(medium, ""), volume.MounterArgs{})
		require.ErrorIs(t, err, mount.ErrForeign)
		require.ErrorIs(t, tearDown(t, plugin), mount.ErrForeign)
		assert.FileExists(t, canary)
		assert.FileExists(t, filepath.Join(path, "canary"), "it is still mounted")
		require.NoError(t, plugin.mount.Unmount(t.Context(), path, mount.UnmountOptions{}))
	}
}

func TestMetricsAreOfTheVolume(t *testing.T) {
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), make([]byte, 1<<20), 0o600))
	unmounter, err := plugin.NewUnmounter("scratch", pod.UID)
	require.NoError(t, err)
	metrics, err := unmounter.GetMetrics(t.Context())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, metrics.Used.Value(), int64(1<<20))
	assert.Less(t, metrics.Used.Value(), int64(2<<20))
}

func TestMetricsOfMemoryAreOfTheTmpfs(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("Memory", "4Mi"), volume.MounterArgs{})
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), make([]byte, 1<<20), 0o600))
	unmounter, err := plugin.NewUnmounter("scratch", pod.UID)
	require.NoError(t, err)
	metrics, err := unmounter.GetMetrics(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 4<<20, metrics.Capacity.Value())
	assert.EqualValues(t, 1<<20, metrics.Used.Value())
}

// A whole tmpfs is no proof: only the one that SetUp has mounted is the volume.
func TestForeignTmpfsInPlaceOfAVolumeInMemoryIsNeitherAdoptedNorUnmounted(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("Memory", ""), volume.MounterArgs{})
	require.NoError(t, unix.Unmount(path, 0))
	require.NoError(t, unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=777"))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	precious := filepath.Join(path, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))

	_, err := setUp(t, plugin, spec("Memory", ""), volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrForeign)
	require.ErrorIs(t, tearDown(t, newLike(plugin)), mount.ErrForeign)
	assert.FileExists(t, precious)

	require.NoError(t, unix.Unmount(path, 0))
	require.NoError(t, tearDown(t, newLike(plugin)))
	assert.NoDirExists(t, path)
}

// foreignTree mounts a tmpfs over a directory, in which there is a file where the volume has its content. The mount goes at the
// end of the test at the latest.
func foreignTree(t *testing.T, over, path string) (precious string) {
	t.Helper()
	require.NoError(t, unix.Mount("foreign", over, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	require.NoError(t, os.MkdirAll(path, 0o777))
	precious = filepath.Join(path, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("foreign"), 0o600))
	return precious
}

func TestWhatAMountOverAParentShowsIsNeitherDeletedNorUsed(t *testing.T) {
	mounttest.RequireMounts(t)
	for _, below := range []string{"", "pod-1", "pod-1/volumes", "pod-1/volumes/kubernetes.io~empty-dir"} {
		plugin := newPlugin(t)
		path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
		require.NoError(t, os.WriteFile(filepath.Join(path, "ours"), nil, 0o600))
		over := filepath.Join(plugin.host.GetPodsDir(), below)
		precious := foreignTree(t, over, path)

		require.ErrorIs(t, tearDown(t, newLike(plugin)), owned.ErrUnproven, below)
		assert.FileExists(t, precious, below)
		_, err := setUp(t, newLike(plugin), spec("", ""), volume.MounterArgs{})
		require.ErrorIs(t, err, owned.ErrUnproven, below)
		_, err = plugin.ConstructVolumeSpec("scratch", path)
		require.ErrorIs(t, err, owned.ErrUnproven, below)

		require.NoError(t, unix.Unmount(over, 0))
		assert.FileExists(t, filepath.Join(path, "ours"), below)
		require.NoError(t, tearDown(t, newLike(plugin)))
		assert.NoDirExists(t, path)
	}
}

func TestVolumeThatAnEmptyMountHidesIsNotGone(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	over := filepath.Join(plugin.host.GetPodsDir(), "pod-1/volumes")
	require.NoError(t, unix.Mount("foreign", over, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	require.ErrorIs(t, tearDown(t, plugin), owned.ErrUnproven)
	_, err := setUp(t, plugin, spec("", ""), volume.MounterArgs{})
	require.ErrorIs(t, err, owned.ErrUnproven, "no other directory is made in its place")
	require.NoError(t, unix.Unmount(over, 0))
	assert.DirExists(t, path)
}

func TestForeignDirectoryInPlaceOfTheVolumeStays(t *testing.T) {
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	require.NoError(t, os.Rename(path, path+"-moved"))
	require.NoError(t, os.Mkdir(path, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(path, "precious"), nil, 0o600))
	require.ErrorIs(t, tearDown(t, newLike(plugin)), owned.ErrUnproven)
	_, err := setUp(t, newLike(plugin), spec("", ""), volume.MounterArgs{})
	require.ErrorIs(t, err, owned.ErrUnproven)
	assert.FileExists(t, filepath.Join(path, "precious"))

	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, tearDown(t, newLike(plugin)), "it was taken away by hand")
	require.NoError(t, tearDown(t, newLike(plugin)))
	assert.DirExists(t, path+"-moved")
}

func TestADirectoryWithoutProofIsNoVolume(t *testing.T) {
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	found, err := newLike(plugin).ConstructVolumeSpec("scratch", path)
	require.NoError(t, err)
	assert.Equal(t, "scratch", found.Spec.Name())
	stray, file := filepath.Join(filepath.Dir(path), "stray"), filepath.Join(filepath.Dir(path), "file")
	require.NoError(t, os.MkdirAll(filepath.Join(stray, "content"), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	for _, at := range []string{stray, file} {
		_, err := plugin.ConstructVolumeSpec(filepath.Base(at), at)
		require.Error(t, err, at)
		unmounter, err := plugin.NewUnmounter(filepath.Base(at), pod.UID)
		require.NoError(t, err)
		require.ErrorIs(t, unmounter.TearDown(t.Context()), owned.ErrUnproven, at)
	}
	assert.DirExists(t, filepath.Join(stray, "content"))
	assert.FileExists(t, file)
	_, err = plugin.ConstructVolumeSpec("scratch", filepath.Join(t.TempDir(), "scratch"))
	require.ErrorIs(t, err, volume.ErrInvalid, "it is the place of no volume")
}

func TestSetUpAfterAKillAndTearDownAfterOne(t *testing.T) {
	plugin := newPlugin(t)
	path := mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	require.NoError(t, os.Remove(path), "a kill between the removal of the directory and that of its proof")
	mustSetUp(t, plugin, spec("", ""), volume.MounterArgs{})
	require.NoError(t, tearDown(t, plugin))
	entries, err := os.ReadDir(plugin.host.GetPodPluginDir(pod.UID, Name))
	require.NoError(t, err)
	assert.Empty(t, entries, "no proof is left")
}
