package loop_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// loops is what the tests of this package attach with.
var loops = loop.New(loop.Options{}) //nolint:gochecknoglobals // One for all tests, as a program has one.

// backing makes a sparse file and checks at the end that no device of it is left.
func backing(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	file, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, file.Truncate(8<<20))
	require.NoError(t, file.Close())
	t.Cleanup(func() { dropLeft(t, filepath.Dir(path)) })
	return path
}

// dropLeft fails the test for each device over a file in dir, and takes it off.
func dropLeft(t *testing.T, dir string) {
	ctx := context.WithoutCancel(t.Context())
	for _, d := range devicesIn(t, dir) {
		t.Errorf("%s was left attached to %s", d.Path, d.BackingPath)
		assert.NoError(t, loops.Detach(ctx, d))
	}
}

func devicesIn(t *testing.T, dir string) []loop.Device {
	t.Helper()
	all, err := loops.Devices(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	var in []loop.Device
	for _, d := range all {
		if strings.HasPrefix(d.BackingPath, dir+"/") {
			in = append(in, d)
		}
	}
	return in
}

func attach(t *testing.T, path string, options loop.AttachOptions) loop.Device {
	t.Helper()
	device, err := loops.Attach(t.Context(), path, options)
	require.NoError(t, err)
	return device
}

func TestAttachFindDetach(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	_, err := loops.Find(t.Context(), path)
	require.ErrorIs(t, err, loop.ErrNotAttached)

	device := attach(t, path, loop.AttachOptions{Label: "a label"})
	assert.Equal(t, fmt.Sprintf("/dev/loop%d", device.Number), device.Path)
	assert.Equal(t, path, device.BackingPath)
	assert.Equal(t, "a label", device.Label)
	assert.False(t, device.ReadOnly)
	assert.True(t, device.Whole())
	var st unix.Stat_t
	require.NoError(t, unix.Stat(device.Path, &st))
	assert.Equal(t, unix.Mkdev(device.Major, device.Minor), st.Rdev)

	require.NoError(t, os.WriteFile(device.Path, []byte("through the device"), 0))
	found, err := loops.Find(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, device, found)

	require.NoError(t, loops.Detach(t.Context(), device))
	assert.Empty(t, devicesIn(t, filepath.Dir(path)))
	require.NoError(t, loops.Detach(t.Context(), device), "a second time")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "through the device", string(content[:18]))
}

func TestAttachIsIdempotent(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	first := attach(t, path, loop.AttachOptions{})
	second := attach(t, path, loop.AttachOptions{})
	assert.Equal(t, first, second)
	assert.Len(t, devicesIn(t, filepath.Dir(path)), 1)
	require.NoError(t, loops.Detach(t.Context(), first))
}

func TestAttachFollowsTheFileNotItsName(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{})
	renamed := path + ".renamed"
	require.NoError(t, os.Rename(path, renamed))
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	_, err := loops.Find(t.Context(), path)
	require.ErrorIs(t, err, loop.ErrNotAttached, "another file has the name")
	assert.Equal(t, device.Path, attach(t, renamed, loop.AttachOptions{}).Path)
	linked := path + ".linked"
	require.NoError(t, os.Link(renamed, linked))
	assert.Equal(t, device.Path, attach(t, linked, loop.AttachOptions{}).Path)
	require.NoError(t, loops.Detach(t.Context(), device))
}

func TestAttachAtOnceGivesOneDevice(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	paths := make([]string, 16)
	var group sync.WaitGroup
	for i := range paths {
		group.Go(func() {
			device, err := loops.Attach(t.Context(), path, loop.AttachOptions{})
			if assert.NoError(t, err) {
				paths[i] = device.Path
			}
		})
	}
	group.Wait()
	for _, p := range paths {
		assert.Equal(t, paths[0], p)
	}
	left := devicesIn(t, filepath.Dir(path))
	require.Len(t, left, 1)
	require.NoError(t, loops.Detach(t.Context(), left[0]))
}

func TestAttachByProcessesGivesOneDevice(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			cmd.Env = append(os.Environ(), childFile+"="+path)
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, string(out))
		})
	}
	group.Wait()
	left := devicesIn(t, filepath.Dir(path))
	require.Len(t, left, 1)
	require.NoError(t, loops.Detach(t.Context(), left[0]))
}

func TestAttachByAnOrdinaryUserSaysWhatIsMissing(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	require.NoError(t, os.Chmod(path, 0o666))
	t.Chdir(filepath.Dir(path)) // which the other user could not enter
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childFile+"="+filepath.Base(path))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "permission denied")
	assert.Contains(t, string(out), "need root")
	assert.NotContains(t, string(out), "load the kernel module")
}

func TestAttachDifferentFilesAtOnce(t *testing.T) {
	mounttest.RequireRoot(t)
	seen := make(chan loop.Device, 12)
	var group sync.WaitGroup
	for range cap(seen) {
		path := backing(t)
		group.Go(func() {
			device, err := loops.Attach(t.Context(), path, loop.AttachOptions{})
			if assert.NoError(t, err) {
				assert.Equal(t, path, device.BackingPath)
				seen <- device
			}
		})
	}
	group.Wait()
	close(seen)
	numbers := map[int]bool{}
	for d := range seen {
		assert.False(t, numbers[d.Number], "%s was given twice", d.Path)
		numbers[d.Number] = true
		assert.NoError(t, loops.Detach(t.Context(), d))
	}
}

func TestAttachReadOnly(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{ReadOnly: true})
	assert.True(t, device.ReadOnly)
	err := os.WriteFile(device.Path, []byte("x"), 0)
	require.Error(t, err)
	_, err = loops.Attach(t.Context(), path, loop.AttachOptions{})
	require.ErrorIs(t, err, loop.ErrInUse)
	require.NoError(t, loops.Detach(t.Context(), device))

	device = attach(t, path, loop.AttachOptions{})
	_, err = loops.Attach(t.Context(), path, loop.AttachOptions{ReadOnly: true})
	require.ErrorIs(t, err, loop.ErrInUse)
	require.NoError(t, loops.Detach(t.Context(), device))
}

func TestAttachSectorSizeAndDirectIO(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{SectorSize: 4096, DirectIO: true})
	size, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/queue/logical_block_size", device.Number))
	require.NoError(t, err)
	assert.Equal(t, "4096\n", string(size))
	dio, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/dio", device.Number))
	require.NoError(t, err)
	assert.Equal(t, device.DirectIO, strings.TrimSpace(string(dio)) == "1")
	require.NoError(t, loops.Detach(t.Context(), device))
}

func TestAttachRefuses(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	path := backing(t)
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for name, want := range map[string]error{
		link: loop.ErrNotRegular, fifo: loop.ErrNotRegular, dir: loop.ErrNotRegular,
		"/dev/null": loop.ErrNotRegular, filepath.Join(dir, "missing"): fs.ErrNotExist,
	} {
		_, err := loops.Attach(t.Context(), name, loop.AttachOptions{})
		require.ErrorIs(t, err, want, name)
	}
	_, err := loops.Attach(t.Context(), path, loop.AttachOptions{SectorSize: 1000})
	require.ErrorIs(t, err, fs.ErrInvalid)

	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, os.Remove(path))
	_, err = loops.AttachFile(t.Context(), file, loop.AttachOptions{})
	require.ErrorIs(t, err, fs.ErrNotExist, "a deleted file")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = loops.Attach(ended, backing(t), loop.AttachOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestFindRefusesTwoDevices(t *testing.T) {
	mounttest.RequireRoot(t)
	losetup := lookLosetup(t)
	path := backing(t)
	for range 2 {
		out, err := exec.CommandContext(t.Context(), losetup, "-f", path).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	_, err := loops.Find(t.Context(), path)
	require.ErrorIs(t, err, loop.ErrInUse)
	_, err = loops.Attach(t.Context(), path, loop.AttachOptions{})
	require.ErrorIs(t, err, loop.ErrInUse)
	both := devicesIn(t, filepath.Dir(path))
	require.Len(t, both, 2)
	for _, d := range both {
		require.NoError(t, loops.Detach(t.Context(), d))
	}
}

func lookLosetup(t *testing.T) string {
	losetup, err := exec.LookPath("losetup")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("losetup is missing: install the package mount or util-linux")
		}
		t.Skip("missing: losetup: install the package mount or util-linux")
	}
	return losetup
}

func TestDetachLeavesAnotherFileAlone(t *testing.T) {
	mounttest.RequireRoot(t)
	mine := attach(t, backing(t), loop.AttachOptions{})
	stale := mine
	stale.BackingInode++
	stale.DiskSeq--
	require.NoError(t, loops.Detach(t.Context(), stale), "the device has another file: ours is gone")
	opened, err := loops.DeviceOpened(t.Context(), mine.Path)
	require.NoError(t, err)
	assert.False(t, opened)
	_, err = loops.Find(t.Context(), mine.BackingPath)
	require.NoError(t, err, "it was not touched")
	require.NoError(t, loops.Detach(t.Context(), mine))
}

func TestDetachOfADeviceInExclusiveUse(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{})
	holder, err := os.OpenFile(device.Path, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	opened, err := loop.DeviceUse{}.DeviceOpened(t.Context(), device.Path)
	require.NoError(t, err)
	assert.True(t, opened)

	err = loops.Detach(t.Context(), device)
	require.ErrorIs(t, err, loop.ErrInUse)
	require.ErrorIs(t, err, unix.EBUSY)
	found, err := loops.Find(t.Context(), path)
	require.NoError(t, err)
	assert.False(t, found.AutoClear, "nothing was changed")

	require.NoError(t, holder.Close())
	require.NoError(t, loops.Detach(t.Context(), device))
}

// Who has a device alone for a moment is waited for; a mount is none of these.
func TestAwaitReleased(t *testing.T) {
	mounttest.RequireRoot(t)
	requireFormat(t, "ext4")
	path := backing(t)
	require.NoError(t, format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"}))
	device := attach(t, path, loop.AttachOptions{})
	mounted, err := loops.AwaitReleased(t.Context(), device.Path)
	require.NoError(t, err)
	assert.False(t, mounted)

	holder, err := os.OpenFile(device.Path, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = loops.AwaitReleased(soon, device.Path)
	require.ErrorIs(t, err, context.DeadlineExceeded, "it waits")
	_, err = loop.New(loop.Options{}).AwaitReleased(t.Context(), device.Path)
	require.ErrorIs(t, err, loop.ErrInUse, "it does not wait for ever")
	require.NoError(t, holder.Close())
	mounted, err = loop.New(loop.Options{}).AwaitReleased(t.Context(), device.Path)
	require.NoError(t, err)
	assert.False(t, mounted)

	dir := t.TempDir()
	require.NoError(t, unix.Mount(device.Path, dir, "ext4", 0, ""))
	mounted, err = loop.New(loop.Options{}).AwaitReleased(t.Context(), device.Path)
	assert.NoError(t, err)
	assert.True(t, mounted)
	require.NoError(t, unix.Unmount(dir, 0))
	require.NoError(t, loops.Detach(t.Context(), device))
}

// TestDetachWhileRead names who reads the device. There may be more than the two of the test: udev, or another program that
// looks at all loop devices.
func TestDetachWhileRead(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{})
	reader, err := os.Open(device.Path)
	require.NoError(t, err)
	other := exec.CommandContext(t.Context(), "cat")
	other.ExtraFiles = []*os.File{reader}
	stdin, err := other.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())

	err = loops.Detach(t.Context(), device)
	var inUse *loop.InUseError
	require.ErrorAs(t, err, &inUse)
	require.ErrorIs(t, err, loop.ErrInUse)
	require.ErrorIs(t, err, mount.ErrUncertain, "it is under way")
	require.ErrorIs(t, err, unix.EBUSY)
	require.NotEmpty(t, inUse.Holders)
	assert.Equal(t, loop.Holder{PID: os.Getpid()}, inUse.Holders[0], "this process comes first")
	assert.True(t, slices.Contains(inUse.Holders, loop.Holder{PID: other.Process.Pid}) || len(inUse.Holders) == 4, "no more than four are named")
	_, err = loops.Attach(t.Context(), path, loop.AttachOptions{})
	require.ErrorIs(t, err, loop.ErrInUse, "no second device while the first one lingers")
	assert.Len(t, devicesIn(t, filepath.Dir(path)), 1)

	require.NoError(t, reader.Close())
	require.NoError(t, stdin.Close())
	require.NoError(t, other.Wait())
	require.NoError(t, loops.Detach(t.Context(), device), "it went with the last close")
}

func TestWhileDetached(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	device := attach(t, path, loop.AttachOptions{})
	never := func() error { t.Error("called although attached"); return nil }
	require.ErrorIs(t, loops.WhileDetached(t.Context(), file, never), loop.ErrInUse)
	require.NoError(t, loops.Detach(t.Context(), device))

	err = loops.WhileDetached(t.Context(), file, func() error {
		locked, cancel := context.WithCancel(t.Context())
		context.AfterFunc(t.Context(), cancel)
		done := make(chan error, 1)
		go func() {
			_, err := loops.Attach(locked, path, loop.AttachOptions{})
			done <- err
		}()
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled, "no process attaches meanwhile")
		return os.ErrProcessDone
	})
	require.ErrorIs(t, err, os.ErrProcessDone, "the error of the function")
}

func TestOpened(t *testing.T) {
	mounttest.RequireRoot(t)
	file := backing(t)
	for _, path := range []string{file, filepath.Join(file, "below"), file + ".missing", "/dev/null", "/"} {
		opened, err := loops.DeviceOpened(t.Context(), path)
		require.NoError(t, err, path)
		assert.False(t, opened, path)
	}
}

func TestAttachMakesAMissingNode(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	dir := t.TempDir()
	control := filepath.Join(dir, "loop-control")
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/dev/loop-control", &st))
	require.NoError(t, unix.Mknod(control, unix.S_IFCHR|0o600, int(st.Rdev)))
	require.NoError(t, unix.Mount(dir, "/dev", "", unix.MS_BIND, ""))
	defer func() { assert.NoError(t, unix.Unmount("/dev", unix.MNT_DETACH)) }()

	device := attach(t, path, loop.AttachOptions{})
	assert.FileExists(t, filepath.Join(dir, filepath.Base(device.Path)))
	require.NoError(t, loops.Detach(t.Context(), device))

	require.NoError(t, os.Remove(control))
	_, err := loops.Attach(t.Context(), path, loop.AttachOptions{})
	require.ErrorIs(t, err, loop.ErrNoDevice)
}

func TestAttachRefusesAForeignNode(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{})
	other := attach(t, backing(t), loop.AttachOptions{})
	require.NoError(t, unix.Mount(other.Path, device.Path, "", unix.MS_BIND, ""))
	_, err := loops.Find(t.Context(), path)
	require.NoError(t, unix.Unmount(device.Path, 0))
	require.ErrorIs(t, err, loop.ErrNoDevice, "the node is another device")
	require.NoError(t, loops.Detach(t.Context(), device))
	require.NoError(t, loops.Detach(t.Context(), other))
}

// partitioned returns a disk and its two parts.
func partitioned(t *testing.T) (disk, first, second string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", "--partscan", backing(t)).Output()
	require.NoError(t, err)
	disk = strings.TrimSpace(string(out))
	for number, start := range map[string]string{"1": "2048", "2": "8192"} { // in sectors
		out, err := exec.CommandContext(t.Context(), "addpart", disk, number, start, "4096").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return disk, disk + "p1", disk + "p2"
}

func TestADiskAndItsPartsAreNotHeldWhileOneIsMounted(t *testing.T) {
	mounttest.RequireRoot(t)
	disk, first, second := partitioned(t)
	unheld := func(path string) error {
		return loops.WhileUnheld(t.Context(), path, func() error { return nil })
	}
	hold := func(path string) loop.Device {
		file, err := os.Open(path)
		require.NoError(t, err)
		defer file.Close()
		device, err := loops.HoldDevice(t.Context(), file, "test/"+filepath.Base(path))
		require.NoError(t, err)
		return device
	}
	for _, c := range []struct {
		held              string
		refused, accepted []string
	}{
		{disk, []string{disk, first, second}, nil},
		{first, []string{disk, first}, []string{second}},
	} {
		device := hold(c.held)
		for _, path := range c.refused {
			require.ErrorIs(t, unheld(path), loop.ErrInUse, "%s while %s is held", path, c.held)
		}
		for _, path := range c.accepted {
			require.NoError(t, unheld(path), "%s while %s is held", path, c.held)
		}
		require.NoError(t, loops.Detach(t.Context(), device))
		require.NoError(t, unheld(disk))
	}
	require.ErrorIs(t, unheld(t.TempDir()), os.ErrInvalid)
	require.ErrorIs(t, unheld(filepath.Join(t.TempDir(), "none")), fs.ErrNotExist)
	all, err := loops.Devices(t.Context())
	require.NoError(t, err)
	for _, d := range all {
		if d.Path == disk {
			require.NoError(t, loops.Detach(t.Context(), d))
		}
	}
}
