package loopblock_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

func TestLifeOfEachFilesystem(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			requireTool(t, fsType)
			n := newNode(t)
			spec := n.provision("pv", "fstype", fsType)
			assert.Equal(t, fsType, spec.PersistentVolume.Spec.CSI.FSType)
			info, err := os.Stat(n.image("pv"))
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode())
			size := spec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]
			assert.Equal(t, info.Size(), size.Value())
			assert.NoFileExists(t, filepath.Join(n.images, "pv.partial"))

			requireKernel(n, spec, fsType)
			staging := n.stage(spec)
			path := n.setUp(spec, "pod-1")
			write(t, filepath.Join(path, "file"), "content")
			require.NoError(t, n.tryStage(spec, n.attach(spec)), "staged again")
			require.NoError(t, n.mounterOf(spec, "pod-1").SetUp(t.Context(), volume.MounterArgs{}), "set up again")
			assert.Len(t, n.mountsAt(path), 1)
			assert.Len(t, n.mountsAt(staging), 1)
			n.tearDown(spec, "pod-1")
			n.release(spec)

			n.stage(spec)
			path = n.setUp(spec, "pod-2")
			assertContent(t, filepath.Join(path, "file"), "content")
			n.tearDown(spec, "pod-2")
			n.release(spec)
			_, err = loop.New(loop.Options{}).Find(t.Context(), n.image("pv"))
			require.ErrorIs(t, err, loop.ErrNotAttached)

			require.NoError(t, n.tryDelete(spec))
			assert.NoFileExists(t, n.image("pv"))
		})
	}
}

// requireKernel skips where the kernel cannot mount fsType, and fails under CI. It leaves the volume detached.
func requireKernel(n *node, spec *volume.Spec, fsType string) {
	n.t.Helper()
	err := n.tryStage(spec, n.attach(spec))
	if err == nil {
		n.release(spec)
		return
	}
	require.ErrorIs(n.t, err, unix.ENODEV)
	if os.Getenv("CI") == "true" {
		n.t.Fatalf("missing, and under CI nothing is skipped: a kernel that mounts %s", fsType)
	}
	n.t.Skipf("missing: a kernel that mounts %s", fsType)
}

func TestReadOnlyPodBesideWritingPod(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.stage(spec)
	writer := n.setUp(spec, "writer")
	readOnly := volume.NewSpecFromPersistentVolume(spec.PersistentVolume, true)
	reader := n.setUp(readOnly, "reader")
	assert.True(t, n.mounterOf(readOnly, "reader").GetAttributes().ReadOnly)
	assert.False(t, n.mounterOf(spec, "writer").GetAttributes().ReadOnly)

	write(t, filepath.Join(writer, "file"), "of the writer")
	assertContent(t, filepath.Join(reader, "file"), "of the writer")
	require.ErrorIs(t, os.WriteFile(filepath.Join(reader, "file"), nil, 0o644), unix.EROFS)
	require.ErrorIs(t, os.Mkdir(filepath.Join(reader, "dir"), 0o755), unix.EROFS)

	err := n.mounterOf(spec, "reader").SetUp(t.Context(), volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrForeign, "a mount is not made writable under a pod")
	require.ErrorIs(t, os.Mkdir(filepath.Join(reader, "dir"), 0o755), unix.EROFS)

	n.tearDown(spec, "reader")
	write(t, filepath.Join(writer, "file"), "again")
	n.tearDown(spec, "writer")
	n.release(spec)
}

func TestReadOnlyVolumeIsNeverWritten(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	before := sum(t, n.image("pv"))
	spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	n.stage(spec)
	device, err := loop.New(loop.Options{}).Find(t.Context(), n.image("pv"))
	require.NoError(t, err)
	assert.True(t, device.ReadOnly)
	path := n.setUp(spec, "pod")
	require.ErrorIs(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o644), unix.EROFS)
	n.tearDown(spec, "pod")
	n.release(spec)
	assert.Equal(t, before, sum(t, n.image("pv")))
}

func TestReadOnlyVolumeThatWasNotUnmountedCleanly(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	file, err := os.Create(filepath.Join(n.stage(spec), "file"))
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
	content, err := os.ReadFile(n.image("pv"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(n.image("cut"), content, 0o600))
	n.release(spec)

	cut := volume.NewSpecFromPersistentVolume(spec.PersistentVolume.DeepCopy(), false)
	cut.PersistentVolume.Spec.CSI.VolumeHandle = "cut"
	cut.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	before := sum(t, n.image("cut"))
	err = n.tryStage(cut, n.attach(cut))
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorContains(t, err, "stage it once for writing")
	n.release(cut)
	assert.Equal(t, before, sum(t, n.image("cut")))

	writable := volume.NewSpecFromPersistentVolume(cut.PersistentVolume.DeepCopy(), false)
	writable.PersistentVolume.Spec.AccessModes = spec.PersistentVolume.Spec.AccessModes
	n.stage(writable)
	n.release(writable)
	assert.FileExists(t, filepath.Join(n.stage(cut), "file"), "what was synced before the cut")
	n.release(cut)
}

func TestSetuidAndDevicesHaveNoEffect(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	path := n.setUp(spec, "pod")
	for _, p := range []string{staging, path} {
		at := n.mountsAt(p)
		require.Len(t, at, 1)
		assert.Subset(t, at[0].Options, []string{"nosuid", "nodev"}, p)
	}
	n.tearDown(spec, "pod")
	n.release(spec)

	spec.PersistentVolume.Spec.MountOptions = []string{"suid", "dev", "noatime"}
	n.stage(spec)
	at := n.mountsAt(n.setUp(spec, "pod"))
	require.Len(t, at, 1)
	assert.NotContains(t, at[0].Options, "nosuid")
	assert.NotContains(t, at[0].Options, "nodev")
	assert.Contains(t, at[0].Options, "noatime")
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestSetUpRefusesWhatIsNotStaged(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stagingPath(spec)
	mounter := n.mounterOf(spec, "pod")
	refused := func(why string) {
		t.Helper()
		err := mounter.SetUp(t.Context(), volume.MounterArgs{})
		require.ErrorIs(t, err, loopblock.ErrNotStaged, why)
		assert.NoDirExists(t, mounter.GetPath(), why)
	}
	refused("nothing is there")
	require.NoError(t, os.MkdirAll(staging, 0o750))
	refused("a directory is there, as after a reboot")

	n.cleanMount(staging)
	require.NoError(t, unix.Mount("tmpfs", staging, "tmpfs", 0, ""))
	refused("a tmpfs is there")
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), mount.ErrForeign)
	require.NoError(t, unix.Unmount(staging, 0))

	other := n.provision("other")
	otherDevice := n.attach(other)
	require.NoError(t, unix.Mount(otherDevice, staging, "ext4", 0, ""))
	refused("another volume is there")
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), mount.ErrForeign)
	require.NoError(t, unix.Unmount(staging, 0))

	require.NoError(t, n.tryStage(spec, n.attach(spec)))
	n.setUp(spec, "pod")
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestStageRefusesTheWrongDevice(t *testing.T) {
	n := newNode(t)
	spec, other := n.provision("pv"), n.provision("other")
	n.attach(spec)
	require.ErrorIs(t, n.tryStage(spec, n.attach(other)), mount.ErrForeign)
	require.ErrorIs(t, n.tryStage(spec, "/dev/null"), loop.ErrNotAttached)
	assert.Empty(t, n.mountsAt(n.stagingPath(spec)))

	device := n.attach(spec)
	n.cleanMount(n.stagingPath(other))
	err := n.attacher().MountDevice(t.Context(), spec, device, n.stagingPath(other), volume.DeviceMounterArgs{})
	require.ErrorIs(t, err, volume.ErrInvalid, "the place of another volume")
	for _, path := range []string{n.root, filepath.Join(n.root, "x"), n.stagingPath(spec) + "/../../x", "mounts/pv"} {
		err := n.attacher().MountDevice(t.Context(), spec, device, path, volume.DeviceMounterArgs{})
		require.ErrorIs(t, err, volume.ErrInvalid, path)
		unmounter, err := n.plugin.NewDeviceUnmounter()
		require.NoError(t, err)
		require.ErrorIs(t, unmounter.UnmountDevice(t.Context(), path), volume.ErrInvalid, path)
	}
}

func TestStageNeverFormats(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	spec.PersistentVolume.Spec.CSI.FSType = "xfs"
	before := sum(t, n.image("pv"))
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), loopblock.ErrNoFilesystem, "another filesystem")
	require.NoError(t, n.tryDetach(t.Context(), spec))
	assert.Equal(t, before, sum(t, n.image("pv")))

	require.NoError(t, os.Truncate(n.image("pv"), 0))
	require.NoError(t, os.Truncate(n.image("pv"), 32<<20))
	before = sum(t, n.image("pv"))
	spec.PersistentVolume.Spec.CSI.FSType = ""
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), loopblock.ErrNoFilesystem, "a blank image")
	require.NoError(t, n.tryDetach(t.Context(), spec))
	assert.Equal(t, before, sum(t, n.image("pv")))
	assert.Empty(t, n.mountsAt(n.stagingPath(spec)))
}

func TestStageRefusesDamage(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	file, err := os.OpenFile(n.image("pv"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, 1<<20), 4096)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), format.ErrDamaged)
	assert.Empty(t, n.mountsAt(n.stagingPath(spec)))
}

func TestAttachOnAnotherNode(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	_, err := n.attacher().Attach(t.Context(), spec, "node-2")
	require.ErrorIs(t, err, volume.ErrInfeasible)
	_, err = n.attacher().VolumesAreAttached(t.Context(), nil, "node-2")
	require.ErrorIs(t, err, volume.ErrInfeasible)
}

func TestAttachAMissingImage(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	_, err := n.attacher().WaitForAttach(t.Context(), spec, "/dev/loop0", nil)
	require.ErrorIs(t, err, loop.ErrNotAttached, "a path of before the reboot")
	require.NoError(t, n.tryDelete(spec))
	_, err = n.attacher().Attach(t.Context(), spec, nodeName)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, n.tryDetach(t.Context(), spec))
}

func TestAttachLeavesTheDirectoryNever(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	outside := filepath.Join(n.root, "outside.img")
	require.NoError(t, os.Rename(n.image("pv"), outside))
	require.NoError(t, os.Symlink("../outside.img", n.image("pv")))
	_, err := n.attacher().Attach(t.Context(), spec, nodeName)
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.ErrorIs(t, n.tryDelete(spec), volume.ErrInvalid)
	assert.FileExists(t, outside)
	require.NoError(t, os.Remove(n.image("pv")))
	require.NoError(t, os.Rename(outside, filepath.Join(n.images, "other.img")))
	require.NoError(t, os.Symlink("other.img", n.image("pv")))
	_, err = n.attacher().Attach(t.Context(), spec, nodeName)
	require.ErrorIs(t, err, volume.ErrInvalid, "a link to another volume")
}

func TestDetachWhileMounted(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.stage(spec)
	require.ErrorIs(t, n.tryDetach(t.Context(), spec), volume.ErrInUse)
	path := n.setUp(spec, "pod")
	write(t, filepath.Join(path, "file"), "still there")
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestDetachOfADeletedImage(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.attach(spec)
	require.NoError(t, os.Remove(n.image("pv")))
	name := v1.UniqueVolumeName("pv")
	answer, err := n.attacher().VolumesAreAttached(t.Context(), map[v1.UniqueVolumeName]*volume.Spec{name: spec}, nodeName)
	require.NoError(t, err)
	assert.True(t, answer[name])
	require.NoError(t, n.tryDetach(t.Context(), spec))
	answer, err = n.attacher().VolumesAreAttached(t.Context(), map[v1.UniqueVolumeName]*volume.Spec{name: spec}, nodeName)
	require.NoError(t, err)
	assert.Equal(t, map[v1.UniqueVolumeName]bool{name: false}, answer)
}

func TestDeleteInUse(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.attach(spec)
	require.ErrorIs(t, n.tryDelete(spec), volume.ErrInUse)
	assert.FileExists(t, n.image("pv"))
	require.NoError(t, n.tryDetach(t.Context(), spec))
	require.NoError(t, n.tryDelete(spec))
	assert.NoFileExists(t, n.image("pv"))
}

func TestConstructVolumeSpec(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	spec.PersistentVolume.Name = "renamed"
	n.stage(spec)
	path := n.setUp(spec, "pod")
	found, err := n.plugin.ConstructVolumeSpec("renamed", path)
	require.NoError(t, err)
	handle, err := n.plugin.GetVolumeName(found.Spec)
	require.NoError(t, err)
	assert.Equal(t, "pv", handle)
	assert.Equal(t, "renamed", found.Spec.Name())
	n.tearDown(spec, "pod")
	n.release(spec)
	_, err = n.plugin.ConstructVolumeSpec("renamed", n.root)
	require.ErrorIs(t, err, volume.ErrInvalid, "not a volume of ours")
}

// listing counts how often the mount table is read, which is long on a node with many volumes.
type listing struct {
	mount.Interface
	lists int
}

func (l *listing) List(ctx context.Context) ([]mount.MountPoint, error) {
	l.lists++
	return l.Interface.List(ctx)
}

func TestALifeReadsNoMountTable(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	table := &listing{Interface: n.mounter}
	n.plugin = n.pluginOver(table)
	n.stage(spec)
	n.setUp(spec, "pod")
	n.setUp(spec, "pod")
	n.tearDown(spec, "pod")
	n.release(spec)
	assert.Zero(t, table.lists)
}

func TestAForeignMountIsNotTakenOff(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	pod := n.setUp(spec, "pod")
	unmounter, err := n.plugin.NewUnmounter(spec.Name(), "pod")
	require.NoError(t, err)
	deviceUnmounter, err := n.plugin.NewDeviceUnmounter()
	require.NoError(t, err)
	for path, takeOff := range map[string]func(context.Context) error{
		pod:     unmounter.TearDown,
		staging: func(ctx context.Context) error { return deviceUnmounter.UnmountDevice(ctx, staging) },
	} {
		require.NoError(t, unix.Mount("tmpfs", path, "tmpfs", 0, ""))
		require.ErrorIs(t, takeOff(t.Context()), mount.ErrForeign)
		assert.Len(t, n.mountsAt(path), 2, "ours is below it, and stays")
		require.NoError(t, unix.Unmount(path, 0))
	}
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestAForeignMountBelowOursStays(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	pod := n.setUp(spec, "pod")
	require.NoError(t, unix.Mount("tmpfs", pod, "tmpfs", 0, ""))
	require.NoError(t, unix.Mount(staging, pod, "", unix.MS_BIND, ""))
	unmounter, err := n.plugin.NewUnmounter(spec.Name(), "pod")
	require.NoError(t, err)
	err = unmounter.TearDown(t.Context())
	require.ErrorIs(t, err, mount.ErrForeign)
	require.ErrorIs(t, err, volume.ErrUncertain, "a part is done")
	there := n.mountsAt(pod)
	require.Len(t, there, 2, "ours of before, and the foreign one on it")
	assert.Equal(t, "tmpfs", there[1].FSType)
	require.NoError(t, unix.Unmount(pod, 0))
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestTwoMountsOfOursAreBothTakenOff(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	pod := n.setUp(spec, "pod")
	require.NoError(t, unix.Mount(staging, pod, "", unix.MS_BIND, ""))
	require.Len(t, n.mountsAt(pod), 2)
	n.tearDown(spec, "pod")
	assert.Empty(t, n.mountsAt(pod))
	assert.NoDirExists(t, pod)
	n.release(spec)
}

func TestACallReturnsWhileTheImagesHang(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"pv.img": "", "other.img": ""}})
	n.images = f.Path()
	n.plugin = n.pluginOver(n.mounter)
	f.Hang(mounttest.FUSELookup)
	for name, call := range map[string]func(context.Context) error{
		"attach": func(ctx context.Context) error { _, err := n.attacher().Attach(ctx, spec, nodeName); return err },
		"wait": func(ctx context.Context) error {
			_, err := n.attacher().WaitForAttach(ctx, spec, "", nil)
			return err
		},
		"detach": func(ctx context.Context) error { return n.tryDetach(ctx, spec) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- call(ctx) }()
		f.Await(mounttest.FUSELookup)
		cancel()
		err := receive(t, result)
		require.ErrorIs(t, err, mount.ErrUncertain, name)
		require.ErrorIs(t, err, context.Canceled, name)
		var lost *mount.AbandonedError
		require.ErrorAs(t, err, &lost, name)
		f.Answer(unix.EIO)
		receive(t, lost.Done())
	}
}

// receive returns what comes from c, which is nothing when c is closed. It is not waited for until all tests are killed.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	patience := time.NewTimer(30 * time.Second)
	defer patience.Stop()
	var v T
	select {
	case v = <-c:
	case <-patience.C:
		require.Fail(t, "nothing comes")
	}
	return v
}

func TestAMountThatFailsLeavesNoDirectory(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	spec.PersistentVolume.Spec.MountOptions = []string{"no-such-option"}
	require.Error(t, n.tryStage(spec, n.attach(spec)))
	assert.NoDirExists(t, filepath.Dir(n.stagingPath(spec)))
}
