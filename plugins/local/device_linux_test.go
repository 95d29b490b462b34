package local

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

func TestABlankDiskIsFormattedOnceAndKept(t *testing.T) {
	disk := newDevice(t)
	plugin, root := newPlugin(t, Options{})
	link := filepath.Join(t.TempDir(), "by-id")
	require.NoError(t, os.Symlink(disk, link))
	spec := specOf(pvOf(link, "noatime"))

	readOnly := volume.NewSpecFromPersistentVolume(spec.PersistentVolume, true)
	require.ErrorIs(t, stage(t, plugin, readOnly), ErrWrongContent, "who may not write formats nothing")
	require.NoError(t, format.ProveBlank(t.Context(), disk))

	require.NoError(t, stage(t, plugin, spec))
	path := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o600))
	there, _, err := plugin.mountAt(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, "ext4", there.FSType)
	assert.Contains(t, there.Options, "noatime", "a bind has the options of what it shows")
	tearDown(t, plugin, spec, "pod-1")
	require.NoError(t, (&stager{plugin}).UnmountDevice(t.Context(), plugin.stagingPath("disk")))

	plugin = pluginAt(t, root, Options{})
	require.NoError(t, stage(t, plugin, spec))
	content, err := os.ReadFile(filepath.Join(plugin.stagingPath("disk"), "file"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
}

func TestADiskThatIsNotReadyIsNotFormatted(t *testing.T) {
	mounttest.RequireRoot(t)
	ready := filepath.Join(t.TempDir(), "ready")
	require.NoError(t, os.WriteFile(ready, make([]byte, diskSize), 0o600))
	require.NoError(t, format.Make(t.Context(), ready, format.MakeOptions{FSType: "ext4", Label: "kept"}))
	content, err := os.ReadFile(ready)
	require.NoError(t, err)

	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	disk := attach(t, image)
	plugin, _ := newPlugin(t, Options{})
	require.ErrorIs(t, stage(t, plugin, specOf(pvOf(disk))), format.ErrTooSmall)

	require.NoError(t, os.WriteFile(image, content, 0o600))
	_, err = loop.New(loop.Options{}).Resize(t.Context(), image)
	require.NoError(t, err)
	require.NoError(t, stage(t, plugin, specOf(pvOf(disk))))
	label, err := os.ReadFile(image)
	require.NoError(t, err)
	assert.Contains(t, string(label[1024:2048]), "kept", "it is the filesystem that was there")
}

// killed is the store of an agent that is killed before it removes anything from the store.
type killed struct{ format.RecoveryStore }

func (k killed) Save(ctx context.Context, name string, data []byte) error {
	if data == nil {
		return context.Canceled
	}
	return k.RecoveryStore.Save(ctx, name, data)
}

func TestADiskWhoseCheckWasKilledIsStaged(t *testing.T) {
	disk := newDevice(t)
	plugin, _ := newPlugin(t, Options{})
	require.NoError(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext4"}))
	kept := format.Directory{Dir: plugin.checksDir(), Name: "disk"}
	_, err := format.CheckRecoverable(t.Context(), disk, "ext4", killed{kept})
	require.ErrorIs(t, err, context.Canceled)
	file, err := os.OpenFile(disk, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	const lastWritten = 1024 + 0x30
	_, err = file.WriteAt([]byte("torn"), lastWritten)
	require.NoError(t, errors.Join(err, file.Sync()))
	require.NoError(t, stage(t, plugin, specOf(pvOf(disk))))
	entries, err := os.ReadDir(kept.Dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestADiskThatIsNotBlankIsLeftWhole(t *testing.T) {
	disk := newDevice(t)
	plugin, _ := newPlugin(t, Options{})
	xfs := "xfs"
	for what, content := range map[string]struct {
		offset int64
		bytes  string
		err    error
	}{
		"a byte somewhere":           {offset: 5 << 20, bytes: "x", err: format.ErrNotBlank},
		"a partition table":          {offset: 510, bytes: "\x55\xaa", err: ErrWrongContent},
		"an encrypted disk":          {bytes: "LUKS\xba\xbe\x00\x01", err: ErrWrongContent},
		"a filesystem of other kind": {offset: 1080, bytes: "\x53\xef", err: ErrWrongContent},
	} {
		t.Run(what, func(t *testing.T) {
			file, err := os.OpenFile(disk, os.O_RDWR, 0)
			require.NoError(t, err)
			defer file.Close()
			_, err = file.WriteAt([]byte(content.bytes), content.offset)
			require.NoError(t, err)
			require.NoError(t, file.Sync())
			pv := pvOf(disk)
			pv.Spec.Local.FSType = &xfs
			require.ErrorIs(t, stage(t, plugin, specOf(pv)), content.err)
			assert.NoDirExists(t, plugin.stagingPath("disk"))
			found := make([]byte, len(content.bytes))
			_, err = file.ReadAt(found, content.offset)
			require.NoError(t, err)
			assert.Equal(t, content.bytes, string(found))
			_, err = file.WriteAt(make([]byte, len(content.bytes)), content.offset)
			require.NoError(t, err)
		})
	}
}

func TestAFilesystemGrowsToItsDisk(t *testing.T) {
	mounttest.RequireRoot(t)
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 320<<20))
	disk := attach(t, image)
	plugin, _ := newPlugin(t, Options{})
	pv, xfs := pvOf(disk), "xfs" // The expansion of ext4 needs a capability that root may lack.
	pv.Spec.Local.FSType = &xfs
	spec := specOf(pv)
	require.NoError(t, stage(t, plugin, spec))
	path := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	blocks := func() uint64 {
		var fs unix.Statfs_t
		require.NoError(t, unix.Statfs(path, &fs))
		return fs.Blocks
	}
	before := blocks()
	options := volume.NodeResizeOptions{
		VolumeSpec: spec, DeviceMountPath: path, DeviceStagePath: plugin.stagingPath("disk"), NewSize: resource.MustParse("640Mi"),
	}
	_, err := plugin.NodeExpand(t.Context(), options)
	require.ErrorIs(t, err, volume.ErrInfeasible, "the disk is too small")
	assert.Equal(t, before, blocks())

	require.NoError(t, os.Truncate(image, 640<<20))
	_, err = loop.New(loop.Options{}).Resize(t.Context(), image)
	require.NoError(t, err)
	for range 2 {
		done, err := plugin.NodeExpand(t.Context(), options)
		require.NoError(t, err)
		assert.True(t, done)
		assert.Greater(t, blocks(), before*3/2)
	}
	done, err := plugin.NodeExpand(t.Context(), volume.NodeResizeOptions{
		VolumeSpec: specOf(pvOf(t.TempDir())), NewSize: resource.MustParse("1Ti"),
	})
	require.NoError(t, err, "a directory has no size of its own")
	assert.True(t, done)
}

func TestADiskIsMappedAsItIs(t *testing.T) {
	disk := newDevice(t)
	plugin, _ := newPlugin(t, Options{})
	link := filepath.Join(t.TempDir(), "by-id")
	require.NoError(t, os.Symlink(disk, link))
	spec := blockSpec(link)
	created, err := plugin.NewBlockVolumeMapper(spec, pod)
	require.NoError(t, err)
	mapper := created.(volume.CustomBlockVolumeMapper)
	_, err = mapper.SetUpDevice(t.Context(), volume.SetUpDeviceArgs{})
	require.NoError(t, err)
	path, err := mapper.MapPodDevice(t.Context(), volume.MapPodDeviceArgs{})
	require.NoError(t, err)
	assert.Equal(t, link, path, "it is the same after a reboot, whatever number the disk gets")

	global, err := mapper.GetGlobalMapPath(spec)
	require.NoError(t, err)
	mapping := blockmap.Mapping{DevicePath: path, GlobalMapPath: global, PodUID: string(pod.UID)}
	mapping.PodMapDir, mapping.LinkName = mapper.GetPodDeviceMapPath()
	blocks := blockmap.New(blockmap.Options{})
	t.Cleanup(func() { _ = blocks.UnmapDevice(afterwards(t), mapping) })
	require.NoError(t, blocks.MapDevice(t.Context(), mapping))
	inPod := filepath.Join(mapping.PodMapDir, mapping.LinkName)
	require.NoError(t, os.WriteFile(inPod, []byte("of a pod"), 0))
	found, err := plugin.ConstructBlockVolumeSpec(pod.UID, "disk", inPod)
	require.NoError(t, err)
	assert.Equal(t, "disk", found.Name())

	require.NoError(t, blocks.UnmapDevice(t.Context(), mapping))
	content := make([]byte, 8)
	file, err := os.Open(disk)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.Read(content)
	require.NoError(t, err)
	assert.Equal(t, "of a pod", string(content))
	require.ErrorIs(t, stage(t, plugin, specOf(pvOf(disk))), format.ErrNotBlank, "it is no filesystem, and is not made one")
}

func TestAReadOnlyDiskIsServedForReading(t *testing.T) {
	mounttest.RequireRoot(t)
	for fsType, size := range map[string]int64{"ext4": diskSize, "xfs": 320 << 20, "btrfs": 160 << 20} {
		t.Run(fsType, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			require.NoError(t, os.WriteFile(image, nil, 0o600))
			require.NoError(t, os.Truncate(image, size))
			require.NoError(t, format.Make(t.Context(), image, format.MakeOptions{FSType: fsType}))
			loops := loop.New(loop.Options{})
			device, err := loops.Attach(t.Context(), image, loop.AttachOptions{ReadOnly: true})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, loops.Detach(afterwards(t), device)) })

			plugin, _ := newPlugin(t, Options{})
			writing := specOf(pvOf(device.Path))
			reading := volume.NewSpecFromPersistentVolume(writing.PersistentVolume, true)
			require.ErrorIs(t, stage(t, plugin, writing), unix.EROFS)
			require.NoError(t, stage(t, plugin, reading))
			path := mustSetUp(t, plugin, reading, "pod-1", volume.MounterArgs{})
			require.ErrorIs(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600), unix.EROFS)
			_, err = setUp(t, plugin, writing, "pod-2", volume.MounterArgs{})
			require.ErrorIs(t, err, unix.EROFS)
		})
	}
}

// shutDown makes every later access to a filesystem fail.
func shutDown(t *testing.T, path string) {
	t.Helper()
	const shutdown, noLogFlush = 0x8004587d, 2 // the same numbers in ext4 and xfs
	dir, err := os.Open(path)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(dir.Fd()), shutdown, noLogFlush))
}

func TestAFilesystemThatHasFailedIsNotServedToFurtherPods(t *testing.T) {
	disk := newDevice(t)
	plugin, _ := newPlugin(t, Options{})
	spec := specOf(pvOf(disk))
	require.NoError(t, stage(t, plugin, spec))
	path := mustSetUp(t, plugin, spec, "pod-1", volume.MounterArgs{})
	shutDown(t, path)
	_, err := setUp(t, plugin, spec, "pod-2", volume.MounterArgs{})
	require.ErrorIs(t, err, mount.ErrFilesystemFailed)

	tearDown(t, plugin, spec, "pod-1")
	require.NoError(t, (&stager{plugin}).UnmountDevice(t.Context(), plugin.stagingPath("disk")))
	require.NoError(t, stage(t, plugin, spec))
	mustSetUp(t, plugin, spec, "pod-2", volume.MounterArgs{})
}

func TestARepairIsTold(t *testing.T) {
	disk := newDevice(t)
	require.NoError(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext2"}))
	file, err := os.OpenFile(disk, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteAt([]byte{7, 7, 0, 0}, 1024+16) // the number of free inodes
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{0, 0}, 1024+58) // not unmounted cleanly
	require.NoError(t, errors.Join(err, file.Sync()))
	var told events
	plugin, _ := newPlugin(t, Options{Events: &told})
	require.NoError(t, stage(t, plugin, specOf(pvOf(disk))))
	require.Len(t, told, 1)
	assert.Contains(t, told[0], EventFilesystemRepaired)
}

// The plugin reports the errors that a filesystem has recorded, also if its state is clean. The check clears the record.
func TestErrorsOnRecordAreTold(t *testing.T) {
	disk := newDevice(t)
	require.NoError(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext2"}))
	file, err := os.OpenFile(disk, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	const errorCount = 1024 + 0x194
	_, err = file.WriteAt([]byte{5, 0, 0, 0}, errorCount)
	require.NoError(t, errors.Join(err, file.Sync()))
	var told events
	plugin, _ := newPlugin(t, Options{Events: &told})
	require.NoError(t, stage(t, plugin, specOf(pvOf(disk))))
	require.Len(t, told, 1)
	assert.Contains(t, told[0], EventFilesystemErrors)
	assert.Contains(t, told[0], "5 errors")
	left := make([]byte, 4)
	_, err = file.ReadAt(left, errorCount)
	require.NoError(t, err)
	assert.Zero(t, left[0], "the next time nothing is told")
}

// TestACopyOfAnXFSThatIsMountedIsRefusedByName: the error names both devices.
func TestACopyOfAnXFSThatIsMountedIsRefusedByName(t *testing.T) {
	mounttest.RequireRoot(t)
	if err := format.CanMake("xfs"); err != nil {
		t.Skipf("missing: %v", err)
	}
	original, copied := filepath.Join(t.TempDir(), "original"), filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.WriteFile(original, nil, 0o600))
	require.NoError(t, os.Truncate(original, 320<<20))
	require.NoError(t, format.Make(t.Context(), original, format.MakeOptions{FSType: "xfs"}))
	out, err := exec.CommandContext(t.Context(), "cp", "--sparse=always", original, copied).CombinedOutput()
	require.NoError(t, err, string(out))
	first, second := attach(t, original), attach(t, copied)
	plugin, _ := newPlugin(t, Options{})
	require.NoError(t, stage(t, plugin, specOf(pvOf(first))))
	other := pvOf(second)
	other.Name = "copy"
	err = stage(t, plugin, specOf(other))
	require.ErrorIs(t, err, format.ErrSameIdentity)
	require.ErrorIs(t, err, syscall.EINVAL)
	var same *format.SameIdentityError
	require.ErrorAs(t, err, &same)
	assert.Equal(t, []string{second, first, plugin.stagingPath("disk"), "xfs"}, []string{same.Device, same.Other, same.Path, same.FSType})
	assert.Len(t, same.UUID, 36)
}

// mapFor maps the device at path for a pod, as the executor does.
func mapFor(t *testing.T, plugin *Plugin, pod *v1.Pod, path string) (unmap func(), err error) {
	t.Helper()
	created, err := plugin.NewBlockVolumeMapper(blockSpec(path), pod)
	require.NoError(t, err)
	mapper := created.(volume.CustomBlockVolumeMapper)
	device, err := mapper.MapPodDevice(t.Context(), volume.MapPodDeviceArgs{})
	require.NoError(t, err)
	global, err := mapper.GetGlobalMapPath(blockSpec(path))
	require.NoError(t, err)
	mapping := blockmap.Mapping{DevicePath: device, GlobalMapPath: global, PodUID: string(pod.UID)}
	mapping.PodMapDir, mapping.LinkName = mapper.GetPodDeviceMapPath()
	blocks := blockmap.New(blockmap.Options{})
	return func() { require.NoError(t, blocks.UnmapDevice(afterwards(t), mapping)) }, blocks.MapDevice(t.Context(), mapping)
}

func TestADeviceHasAFilesystemOrIsRawAndNeverBoth(t *testing.T) {
	disk := newDevice(t)
	plugin, _ := newPlugin(t, Options{})
	raw, mounted := filepath.Join(t.TempDir(), "by-id"), filepath.Join(t.TempDir(), "by-path")
	require.NoError(t, os.Symlink(disk, raw))
	require.NoError(t, os.Symlink(disk, mounted))
	spec := specOf(pvOf(mounted))

	unmap, err := mapFor(t, plugin, pod, raw)
	require.NoError(t, err)
	defer unmap()
	err = stage(t, plugin, spec)
	require.ErrorIs(t, err, volume.ErrInUse, "blank or not, it is the pod's")
	require.ErrorIs(t, err, unix.EBUSY)
	require.NoError(t, format.ProveBlank(t.Context(), disk))

	unmap()
	require.NoError(t, stage(t, plugin, spec))
	_, err = mapFor(t, plugin, pod, raw)
	require.ErrorIs(t, err, loop.ErrInUse)
	require.NoError(t, (&stager{plugin}).UnmountDevice(t.Context(), plugin.stagingPath("disk")))
	unmap, err = mapFor(t, plugin, pod, raw)
	require.NoError(t, err)
	unmap()
}

func TestPodsOfOneBlockVolumeGetOneDisk(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	link, other := filepath.Join(t.TempDir(), "by-id"), pod.DeepCopy()
	other.UID = "other"
	require.NoError(t, os.Symlink(newDevice(t), link))
	unmap, err := mapFor(t, plugin, pod, link)
	require.NoError(t, err)
	defer unmap()

	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(newDevice(t), link))
	_, err = mapFor(t, plugin, other, link)
	require.ErrorIs(t, err, mount.ErrForeign, "the path leads to another disk")
	unmap()
	unmap, err = mapFor(t, plugin, other, link)
	require.NoError(t, err)
	unmap()
	_, err = mapFor(t, plugin, pod, link)
	require.NoError(t, err)
}

func TestADirectoryIsNotMapped(t *testing.T) {
	mounttest.RequireMounts(t)
	plugin, _ := newPlugin(t, Options{})
	created, err := plugin.NewBlockVolumeMapper(blockSpec(t.TempDir()), pod)
	require.NoError(t, err)
	_, err = created.(volume.CustomBlockVolumeMapper).SetUpDevice(t.Context(), volume.SetUpDeviceArgs{})
	require.ErrorIs(t, err, volume.ErrInvalid)
	_, err = created.(volume.CustomBlockVolumeMapper).MapPodDevice(t.Context(), volume.MapPodDeviceArgs{})
	require.ErrorIs(t, err, volume.ErrInvalid)
}

// A check that is killed then takes a person, who would know nothing of it.
func TestACheckIsMadeWhereItsSuperblockCannotBeKeptAndThatIsTold(t *testing.T) {
	disk := newDevice(t)
	require.NoError(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext2"}))
	var log bytes.Buffer
	plugin, _ := newPlugin(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, os.MkdirAll(plugin.checksDir(), 0o700))
	require.NoError(t, unix.Mount("tmpfs", plugin.checksDir(), "tmpfs", 0, "nr_inodes=1"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(plugin.checksDir(), 0)) })
	require.NoError(t, stage(t, plugin, specOf(pvOf(disk))))
	assert.Contains(t, log.String(), "no room")
	assert.Contains(t, log.String(), unix.ENOSPC.Error())
}
