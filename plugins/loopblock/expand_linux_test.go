package loopblock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

const mib = int64(1) << 20

func (n *node) tryExpand(spec *volume.Spec, size int64) (int64, error) {
	has, err := n.plugin.ExpandVolumeDevice(n.t.Context(), spec, *resource.NewQuantity(size, resource.BinarySI), resource.MustParse("32Mi"))
	return has.Value(), err
}

func (n *node) expand(spec *volume.Spec, size int64) int64 {
	n.t.Helper()
	has, err := n.tryExpand(spec, size)
	require.NoError(n.t, err)
	return has
}

func (n *node) nodeExpand(spec *volume.Spec, size int64) error {
	done, err := n.plugin.NodeExpand(n.t.Context(), volume.NodeResizeOptions{
		VolumeSpec: spec, DeviceStagePath: filepath.Join(n.root, "plugins", loopblock.Name, "mounts", spec.Name()),
		NewSize: *resource.NewQuantity(size, resource.BinarySI),
	})
	assert.Equal(n.t, err == nil, done)
	return err
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}

// roomIn is the size of the filesystem at path, as its users see it.
func roomIn(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &st))
	return int64(st.Blocks) * st.Bsize
}

func deviceSize(t *testing.T, path string) int64 {
	t.Helper()
	metrics, err := volume.NewMetricsBlock(path).GetMetrics(t.Context())
	require.NoError(t, err)
	return metrics.Capacity.Value()
}

func TestAFilesystemGrowsWhileAPodHasIt(t *testing.T) {
	for fsType, size := range map[string]int64{"ext4": 96 * mib, "xfs": 400 * mib, "btrfs": 256 * mib} {
		t.Run(fsType, func(t *testing.T) {
			requireTool(t, fsType)
			n := newNode(t)
			spec := n.provision("pv", "fstype", fsType)
			requireKernel(n, spec, fsType)
			staged := n.stage(spec)
			path := n.setUp(spec, "pod")
			write(t, filepath.Join(path, "file"), "content")
			before := roomIn(t, path)

			require.ErrorIs(t, n.nodeExpand(spec, size), volume.ErrInfeasible, "the image is as it was")
			wanted := size
			if fsType == "btrfs" {
				wanted -= 64 * mib // which the kernel would refuse
			}
			assert.Equal(t, size, n.expand(spec, wanted))
			assert.Equal(t, size, fileSize(t, n.image("pv")))
			assert.Equal(t, size, deviceSize(t, n.attach(spec)))
			if err := n.nodeExpand(spec, size); fsType == "ext4" && errors.Is(err, unix.EPERM) {
				require.ErrorIs(t, err, volume.ErrInUse)
				t.Log("an ext4 does not grow while it is used: no CAP_SYS_RESOURCE")
			} else {
				require.NoError(t, err)
				require.NoError(t, n.nodeExpand(spec, size), "again")
				assert.Greater(t, roomIn(t, staged), before+size/10)
			}
			assertContent(t, filepath.Join(path, "file"), "content")
			n.tearDown(spec, "pod")
			n.release(spec)

			n.stage(spec)
			assert.Greater(t, roomIn(t, n.setUp(spec, "pod")), before+size/10)
			assertContent(t, filepath.Join(path, "file"), "content")
			n.tearDown(spec, "pod")
			n.release(spec)
		})
	}
}

func TestAnImageThatIsNotAttachedGrowsWithTheNextStaging(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	assert.Equal(t, 96*mib, n.expand(spec, 96*mib-1), "whole mebibytes")
	room, err := format.Measure(t.Context(), n.image("pv"))
	require.NoError(t, err)
	assert.Equal(t, format.Room{Filesystem: 32 * mib, Device: 96 * mib}, room)
	n.stage(spec)
	n.release(spec)
	room, err = format.Measure(t.Context(), n.image("pv"))
	require.NoError(t, err)
	assert.Equal(t, format.Room{Filesystem: 96 * mib, Device: 96 * mib}, room)
}

// damage removes the inode of the blocks that are reserved for a growth. state is what the superblock says of the filesystem.
func (n *node) damage(state string) {
	n.t.Helper()
	for _, change := range []string{"clri <7>", "set_super_value state " + state} {
		out, err := exec.CommandContext(n.t.Context(), "debugfs", "-w", "-R", change, n.image("pv")).CombinedOutput()
		require.NoError(n.t, err, string(out))
	}
}

// told keeps events.
type told []string

func (e *told) Eventf(_ runtime.Object, _, reason, format string, args ...any) {
	*e = append(*e, reason+" "+fmt.Sprintf(format, args...))
}

// TestErrorsOnRecordAreTold: the check clears them and finds nothing else.
func TestErrorsOnRecordAreTold(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	out, err := exec.CommandContext(t.Context(), "debugfs", "-w", "-R", "set_super_value error_count 5", n.image("pv")).CombinedOutput()
	require.NoError(t, err, string(out))
	var events told
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Events: &events})
	for range 2 {
		n.stage(spec)
		n.release(spec)
	}
	require.Len(t, events, 1, "the next time nothing is told")
	assert.Contains(t, events[0], loopblock.EventFilesystemErrors)
	assert.Contains(t, events[0], "5 errors")
}

const growing = "user.volumekit.growing"

// A filesystem whose growth was broken off is repaired. One that is damaged for another reason is left alone.
func TestAGrowthThatWasBrokenOffIsMended(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	require.NoError(t, os.Truncate(n.image("pv"), 96*mib))
	var kept recorder
	_, err := format.GrowRecoverable(t.Context(), n.image("pv"), &kept)
	require.NoError(t, err)
	n.damage("2")
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), format.ErrDamaged)
	require.NoError(t, unix.Setxattr(n.image("pv"), growing, nil, 0))
	require.ErrorIs(t, n.tryStage(spec, n.attach(spec)), format.ErrDamaged, "a mark alone proves nothing")

	require.NoError(t, unix.Setxattr(n.image("pv"), growing, kept.data, 0))
	n.stage(spec)
	n.release(spec)
	_, err = unix.Getxattr(n.image("pv"), growing, nil)
	require.ErrorIs(t, err, unix.ENODATA)
}

// A second try, which the executor makes by itself, repairs no more than the first.
func TestAGrowthThatIsRefusedOnADamagedFilesystemIsTold(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.expand(spec, 96*mib)
	n.damage("1") // it says that it is whole
	device := n.attach(spec)
	for range 3 {
		require.ErrorIs(t, n.tryStage(spec, device), format.ErrDamaged)
		_, err := unix.Getxattr(n.image("pv"), growing, nil)
		require.ErrorIs(t, err, unix.ENODATA)
	}
}

// events keeps the reasons of events.
type events struct{ reasons []string }

func (e *events) Eventf(_ runtime.Object, _, reason, _ string, _ ...any) {
	e.reasons = append(e.reasons, reason)
}

func TestAVolumeThatWasEnlargedIsStagedWhileTheDiskBelowIsFull(t *testing.T) {
	for fsType, size := range map[string]int64{"ext4": 600 * mib, "xfs": 800 * mib, "btrfs": 512 * mib} {
		t.Run(fsType, func(t *testing.T) {
			requireTool(t, fsType)
			n := newNode(t)
			require.NoError(t, os.MkdirAll(n.images, 0o700))
			require.NoError(t, unix.Mount("tmpfs", n.images, "tmpfs", 0, "size=160m"))
			t.Cleanup(func() { assert.NoError(t, unix.Unmount(n.images, 0)) })
			spec := n.provision("pv", "fstype", fsType)
			requireKernel(n, spec, fsType)
			n.stage(spec)
			write(t, filepath.Join(n.setUp(spec, "pod"), "file"), "content")
			n.tearDown(spec, "pod")
			n.release(spec)

			n.expand(spec, size)
			var told events
			n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Events: &told})
			var below unix.Statfs_t
			require.NoError(t, unix.Statfs(n.images, &below))
			filler, err := os.Create(filepath.Join(n.images, "filler"))
			require.NoError(t, err)
			defer filler.Close()
			require.NoError(t, unix.Fallocate(int(filler.Fd()), 0, 0, int64(below.Bavail)*below.Bsize))

			n.stage(spec)
			assertContent(t, filepath.Join(n.setUp(spec, "pod"), "file"), "content")
			if fsType == "ext4" { // The executor tries at once, and lets the pod start.
				err := n.nodeExpand(spec, size)
				require.ErrorIs(t, err, volume.ErrInUse)
				require.ErrorIs(t, err, unix.ENOSPC)
			}
			n.tearDown(spec, "pod")
			n.release(spec)
			_, err = unix.Getxattr(n.image("pv"), growing, nil)
			require.ErrorIs(t, err, unix.ENODATA)
			if fsType == "ext4" {
				assert.Contains(t, told.reasons, loopblock.EventFilesystemNotGrown)
			}

			require.NoError(t, filler.Truncate(0))
			n.stage(spec)
			path := n.setUp(spec, "pod")
			assertContent(t, filepath.Join(path, "file"), "content")
			assert.Greater(t, roomIn(t, path), size*3/4, "there is room again")
			n.tearDown(spec, "pod")
			n.release(spec)
		})
	}
}

// late is a mounter that lets go of a device just before it mounts it.
type late struct {
	mount.Interface
	letGo func()
}

func (l late) Mount(ctx context.Context, request mount.Request) error {
	l.letGo()
	return l.Interface.Mount(ctx, request)
}

// An e2fsck or a resize2fs that has outlived its agent has the device alone. The filesystem is neither mounted unchecked nor left
// small when that ends just then.
func TestADeviceInExclusiveUseIsNotStagedUnchecked(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.expand(spec, 96*mib)
	device := n.attach(spec)
	holder, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	n.plugin = n.pluginOver(late{n.mounter, func() { _ = holder.Close() }})
	err = n.tryStage(spec, device)
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorIs(t, err, unix.EBUSY)
	require.NoError(t, holder.Close(), "nothing was mounted")
	require.NoError(t, n.tryStage(spec, device))
	assert.Greater(t, roomIn(t, n.stagingPath(spec)), 72*mib)
	n.release(spec)
}

// A program that checks a filesystem and is killed while it writes the superblock leaves a part of it. Nothing else that is broken
// is taken for that.
func TestASuperblockThatACheckLeftBrokenIsPutBack(t *testing.T) {
	const checking, superblock = "user.volumekit.checking", 1024
	n := newNode(t)
	spec := n.provision("pv")
	var kept recorder
	_, err := format.CheckRecoverable(t.Context(), n.image("pv"), "ext4", &kept)
	require.NoError(t, err)
	image, err := os.OpenFile(n.image("pv"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer image.Close()
	const lastWritten = superblock + 0x30
	_, err = image.WriteAt([]byte{1, 2}, lastWritten)
	require.NoError(t, err)
	device := n.attach(spec)
	require.ErrorIs(t, n.tryStage(spec, device), format.ErrDamaged)
	require.ErrorIs(t, n.tryStage(spec, device), format.ErrDamaged, "what was broken before is not kept")

	require.NoError(t, unix.Setxattr(n.image("pv"), checking, kept.data, 0))
	require.NoError(t, n.tryStage(spec, device))
	n.release(spec)
	_, err = unix.Getxattr(n.image("pv"), checking, nil)
	require.ErrorIs(t, err, unix.ENODATA)
}

// recorder tells what a check keeps.
type recorder struct{ data []byte }

func (r *recorder) Save(_ context.Context, _ string, data []byte) error {
	if data != nil {
		r.data = data
	}
	return nil
}

func (r *recorder) Load(context.Context, string) ([]byte, error) { return nil, nil }

func TestAReadOnlyVolumeIsNotExpanded(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.expand(spec, 96*mib)
	spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	before := sum(t, n.image("pv"))
	n.stage(spec)
	require.ErrorIs(t, n.nodeExpand(spec, 96*mib), volume.ErrInfeasible)
	n.release(spec)
	assert.Equal(t, before, sum(t, n.image("pv")))
}

func TestADeviceOfAPodGrowsAtOnce(t *testing.T) {
	n := newNode(t)
	spec, err := n.tryProvision(t.Context(), blockClaim("pv"))
	require.NoError(t, err)
	device := n.attach(spec)
	write(t, device, "of a pod")
	assert.Equal(t, 33*mib, n.expand(spec, 32*mib+1))
	assert.Equal(t, 33*mib, deviceSize(t, device))
	require.NoError(t, n.nodeExpand(spec, 33*mib))
	require.NoError(t, n.tryDetach(t.Context(), spec))
	content, err := os.ReadFile(n.image("pv"))
	require.NoError(t, err)
	assert.Len(t, content, int(33*mib))
	assert.Equal(t, "of a pod", string(content[:8]))
}

func TestAnImageIsNeverMadeSmaller(t *testing.T) {
	n := newNode(t)
	for _, preallocate := range []string{"false", "true"} {
		spec := n.provision("pv-"+preallocate, loopblock.ParameterPreallocate, preallocate)
		image := n.image(spec.Name())
		n.expand(spec, 64*mib)
		assert.Equal(t, 64*mib, n.expand(spec, 40*mib), "it has more than is asked for")
		assert.Equal(t, 64*mib, fileSize(t, image))
		var st unix.Stat_t
		require.NoError(t, unix.Stat(image, &st))
		assert.Equal(t, preallocate == "true", st.Blocks*512 >= 64*mib, "its space is taken where it was")
	}
}

func TestExpansionsAtOnceEndWithTheLargest(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.attach(spec)
	var calls sync.WaitGroup
	for i := range int64(8) {
		calls.Go(func() {
			_, err := n.pluginOver(n.mounter).ExpandVolumeDevice(context.WithoutCancel(t.Context()), spec,
				*resource.NewQuantity((40+i)*mib, resource.BinarySI), resource.MustParse("32Mi"))
			assert.NoError(t, err)
		})
	}
	calls.Wait()
	assert.Equal(t, 47*mib, fileSize(t, n.image("pv")))
	assert.Equal(t, 47*mib, deviceSize(t, n.attach(spec)))
}

func TestExpansionsThatCannotBe(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	_, err := n.tryExpand(spec, 1<<60)
	require.ErrorIs(t, err, volume.ErrInfeasible, "more than an ext4 can have")
	require.NoError(t, os.Rename(n.image("pv"), n.image("away")))
	_, err = n.tryExpand(spec, 64*mib)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, `"pv"`)
	require.ErrorIs(t, n.nodeExpand(spec, 64*mib), fs.ErrNotExist)
	require.NoError(t, os.Symlink(n.image("away"), n.image("pv")))
	_, err = n.tryExpand(spec, 64*mib)
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.Equal(t, 32*mib, fileSize(t, n.image("away")))
	spec.PersistentVolume.Spec.CSI.VolumeHandle = "../pv"
	_, err = n.tryExpand(spec, 64*mib)
	require.ErrorIs(t, err, volume.ErrInvalid)
}
