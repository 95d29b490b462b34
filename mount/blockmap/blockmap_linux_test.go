package blockmap_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// node is a machine with one volume, a device, and pods that want it.
type node struct {
	t      *testing.T
	loops  *loop.Manager
	mapper *blockmap.Mapper
	root   string
	device loop.Device
}

func newNode(t *testing.T) *node {
	mounttest.RequireRoot(t)
	n := &node{t: t, loops: loop.New(loop.Options{}), root: t.TempDir()}
	n.mapper = blockmap.New(blockmap.Options{Loops: n.loops})
	n.device = n.newDevice("disk.img")
	return n
}

func (n *node) newDevice(name string) loop.Device {
	path := filepath.Join(n.root, name)
	require.NoError(n.t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	device, err := n.loops.Attach(n.t.Context(), path, loop.AttachOptions{})
	require.NoError(n.t, err)
	n.t.Cleanup(func() { assert.NoError(n.t, n.loops.Detach(context.WithoutCancel(n.t.Context()), device)) })
	return device
}

func (n *node) mapping(pod string) blockmap.Mapping {
	m := blockmap.Mapping{
		DevicePath: n.device.Path, GlobalMapPath: filepath.Join(n.root, "global/volume"),
		PodMapDir: filepath.Join(n.root, "pods", pod, "volumeDevices/plugin"), LinkName: "pvc", PodUID: pod,
	}
	n.t.Cleanup(func() { assert.NoError(n.t, n.mapper.UnmapDevice(context.WithoutCancel(n.t.Context()), m)) })
	return m
}

func bindOf(m blockmap.Mapping) string { return filepath.Join(m.GlobalMapPath, m.PodUID) }

func linkOf(m blockmap.Mapping) string { return filepath.Join(m.PodMapDir, m.LinkName) }

// locks returns the devices that lock the device of n.
func (n *node) locks() []loop.Device {
	all, err := n.loops.Devices(n.t.Context())
	require.NoError(n.t, err)
	var locks []loop.Device
	for _, d := range all {
		if d.BackingRdev == unix.Mkdev(n.device.Major, n.device.Minor) {
			locks = append(locks, d)
		}
	}
	return locks
}

func (n *node) requireMapped(m blockmap.Mapping) {
	n.t.Helper()
	var st unix.Stat_t
	require.NoError(n.t, unix.Stat(linkOf(m), &st))
	assert.Equal(n.t, unix.Mkdev(n.device.Major, n.device.Minor), st.Rdev)
	target, err := os.Readlink(linkOf(m))
	require.NoError(n.t, err)
	assert.Equal(n.t, bindOf(m), target)
	mounted, err := mount.New(mount.Options{}).IsMountPoint(n.t.Context(), bindOf(m))
	require.NoError(n.t, err)
	assert.True(n.t, mounted)
}

func (n *node) requireNothing(m blockmap.Mapping) {
	n.t.Helper()
	assert.NoFileExists(n.t, linkOf(m))
	assert.NoFileExists(n.t, bindOf(m))
	assert.Empty(n.t, n.locks())
}

func TestMapAndUnmap(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	n.requireMapped(m)
	locks := n.locks()
	require.Len(t, locks, 1)
	assert.True(t, locks[0].ReadOnly, "a second way to write to the device is not made")
	assert.True(t, strings.HasPrefix(locks[0].Label, "volumekit/map/"))
	require.NoError(t, os.WriteFile(linkOf(m), []byte("of the pod"), 0))

	require.NoError(t, n.mapper.MapDevice(t.Context(), m), "a second time")
	n.requireMapped(m)
	assert.Equal(t, locks, n.locks())

	m.DevicePath = ""
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), m))
	n.requireNothing(m)
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), m), "a second time")
	content := make([]byte, 10)
	file, err := os.Open(n.device.BackingPath)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.Read(content)
	require.NoError(t, err)
	assert.Equal(t, "of the pod", string(content))
}

func TestLockOutlivesTheMapper(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	next := blockmap.New(blockmap.Options{}) // as after a restart of the agent
	require.NoError(t, next.MapDevice(t.Context(), m))
	assert.Len(t, n.locks(), 1)
	require.NoError(t, next.UnmapDevice(t.Context(), m))
	n.requireNothing(m)
}

func TestPodsShareADevice(t *testing.T) {
	n := newNode(t)
	first, second := n.mapping("first"), n.mapping("second")
	require.NoError(t, n.mapper.MapDevice(t.Context(), first))
	user, err := os.OpenFile(linkOf(first), os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	require.NoError(t, n.mapper.MapDevice(t.Context(), second), "although the first pod has claimed it")
	require.NoError(t, n.mapper.MapDevice(t.Context(), first), "and it is kept")
	pods, err := n.mapper.MappedPods(t.Context(), first.GlobalMapPath)
	require.NoError(t, err)
	assert.Equal(t, []string{"first", "second"}, pods)
	require.NoError(t, user.Close())
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), first))
	n.requireMapped(second)
	assert.Len(t, n.locks(), 1)
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), second))
	n.requireNothing(second)
	pods, err = n.mapper.MappedPods(t.Context(), filepath.Join(n.root, "none"))
	require.NoError(t, err)
	assert.Empty(t, pods)
}

func TestAClaimedDeviceIsNotMapped(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	holder, err := os.OpenFile(n.device.Path, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	defer holder.Close()
	err = n.mapper.MapDevice(t.Context(), m)
	require.ErrorIs(t, err, loop.ErrInUse)
	require.ErrorIs(t, err, unix.EBUSY)
	n.requireNothing(m)
}

func TestAnotherDeviceIsNotMappedBesideTheOneThatTheVolumeHas(t *testing.T) {
	n := newNode(t)
	other := n.newDevice("other.img").Path
	earlier := n.mapping("earlier")
	require.NoError(t, n.mapper.MapDevice(t.Context(), earlier))
	m := n.mapping("pod")
	m.DevicePath = other
	require.ErrorIs(t, n.mapper.MapDevice(t.Context(), m), mount.ErrForeign)
	assert.NoFileExists(t, bindOf(m))
	n.requireMapped(earlier)
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), earlier))
	require.NoError(t, n.mapper.MapDevice(t.Context(), m), "the last pod that had the other one is gone")
}

// TestADeviceThatWasDetachedIsMappedAnew: without its lock a bind shows whatever has the number by now.
func TestADeviceThatWasDetachedIsMappedAnew(t *testing.T) {
	n := newNode(t)
	other := n.newDevice("other.img")
	first, second := n.mapping("first"), n.mapping("second")
	require.NoError(t, n.mapper.MapDevice(t.Context(), first))
	require.NoError(t, n.mapper.MapDevice(t.Context(), second))
	for _, lock := range n.locks() {
		require.NoError(t, n.loops.Detach(t.Context(), lock))
	}
	n.device = other
	for _, m := range []blockmap.Mapping{first, second} {
		m.DevicePath = other.Path
		require.NoError(t, n.mapper.MapDevice(t.Context(), m))
		n.requireMapped(m)
	}
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), first))
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), second))
	n.requireNothing(second)
}

func TestAnotherDeviceAtThePlaceIsForeign(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	other := m
	other.DevicePath = n.newDevice("other.img").Path
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	require.ErrorIs(t, n.mapper.MapDevice(t.Context(), other), mount.ErrForeign)
	n.requireMapped(m)
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), m))

	require.NoError(t, os.WriteFile(bindOf(m), nil, 0o600))
	require.NoError(t, unix.Mount("/dev/null", bindOf(m), "", unix.MS_BIND, ""))
	require.ErrorIs(t, n.mapper.MapDevice(t.Context(), m), mount.ErrForeign)
	require.ErrorIs(t, n.mapper.UnmapDevice(t.Context(), m), mount.ErrForeign)
	require.NoError(t, unix.Unmount(bindOf(m), 0))
}

// faultyMounter binds something else, or nothing.
type faultyMounter struct {
	mount.Interface
	err    error
	source string
}

func (f faultyMounter) Mount(ctx context.Context, r mount.Request) error {
	if f.err != nil {
		return f.err
	}
	r.Source = f.source
	return f.Interface.Mount(ctx, r)
}

func TestEachStepIsUndone(t *testing.T) {
	n := newNode(t)
	real := mount.New(mount.Options{})
	fault := errors.New("fault")
	for name, c := range map[string]struct {
		mounter mount.Interface
		prepare func(m blockmap.Mapping)
		want    error
	}{
		"the bind":      {faultyMounter{real, fault, ""}, func(blockmap.Mapping) {}, fault},
		"what is bound": {faultyMounter{real, nil, "/dev/null"}, func(blockmap.Mapping) {}, mount.ErrForeign},
		"the link": {real, func(m blockmap.Mapping) {
			require.NoError(t, os.MkdirAll(linkOf(m), 0o750))
			t.Cleanup(func() { assert.NoError(t, os.Remove(linkOf(m))) })
		}, mount.ErrForeign},
	} {
		m := n.mapping(strings.ReplaceAll(name, " ", "-"))
		c.prepare(m)
		mapper := blockmap.New(blockmap.Options{Mounter: c.mounter, Loops: n.loops})
		require.ErrorIs(t, mapper.MapDevice(t.Context(), m), c.want, name)
		assert.NoFileExists(t, bindOf(m), name)
		assert.Empty(t, n.locks(), name)
	}
}

func TestWhatWasThereIsNotUndone(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	require.NoError(t, os.Remove(linkOf(m)))
	require.NoError(t, os.Mkdir(linkOf(m), 0o750))
	require.ErrorIs(t, n.mapper.MapDevice(t.Context(), m), mount.ErrForeign)
	require.NoError(t, os.Remove(linkOf(m)))
	assert.Len(t, n.locks(), 1)
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	n.requireMapped(m)
}

func TestUnmapRemovesWhatAKilledProcessLeft(t *testing.T) {
	n := newNode(t)
	for name, spoil := range map[string]func(m blockmap.Mapping){
		"no-link": func(m blockmap.Mapping) { require.NoError(t, os.Remove(linkOf(m))) },
		"no-lock": func(blockmap.Mapping) { require.NoError(t, n.loops.Detach(t.Context(), n.locks()[0])) },
		"no-bind": func(m blockmap.Mapping) { require.NoError(t, unix.Unmount(bindOf(m), 0)) },
		"no-file": func(m blockmap.Mapping) {
			require.NoError(t, unix.Unmount(bindOf(m), 0))
			require.NoError(t, os.Remove(bindOf(m)))
		},
	} {
		m := n.mapping(name)
		require.NoError(t, n.mapper.MapDevice(t.Context(), m), name)
		spoil(m)
		require.NoError(t, n.mapper.UnmapDevice(t.Context(), m), name)
		n.requireNothing(m)
	}
}

func TestUnmapWhileInUse(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	user, err := os.Open(bindOf(m))
	require.NoError(t, err)
	require.ErrorIs(t, n.mapper.UnmapDevice(t.Context(), m), unix.EBUSY)
	assert.Len(t, n.locks(), 1, "it stays locked while it is used")
	require.NoError(t, user.Close())
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), m))
	n.requireNothing(m)
}

func TestAnOlderLinkIsReplaced(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	require.NoError(t, os.MkdirAll(m.PodMapDir, 0o750))
	require.NoError(t, os.Symlink("/dev/recycled", linkOf(m)))
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	n.requireMapped(m)
	entries, err := os.ReadDir(m.PodMapDir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

func TestALinkInThePathOfADirectoryIsRefused(t *testing.T) {
	n := newNode(t)
	outside := filepath.Join(n.root, "outside")
	require.NoError(t, os.Mkdir(outside, 0o750))
	require.NoError(t, os.Symlink(outside, filepath.Join(n.root, "link")))
	for name, spoil := range map[string]func(m *blockmap.Mapping){
		"pod":    func(m *blockmap.Mapping) { m.PodMapDir = filepath.Join(n.root, "link/pod") },
		"global": func(m *blockmap.Mapping) { m.GlobalMapPath = filepath.Join(n.root, "link/global") },
	} {
		m := n.mapping(name)
		spoil(&m)
		require.Error(t, n.mapper.MapDevice(t.Context(), m), name)
		assert.Empty(t, n.locks(), name)
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestRefusals(t *testing.T) {
	n := newNode(t)
	for name, spoil := range map[string]func(m *blockmap.Mapping){
		"relative":   func(m *blockmap.Mapping) { m.GlobalMapPath = "global" },
		"not clean":  func(m *blockmap.Mapping) { m.PodMapDir += "/../x" },
		"root":       func(m *blockmap.Mapping) { m.PodMapDir = "/" },
		"up":         func(m *blockmap.Mapping) { m.LinkName = ".." },
		"two":        func(m *blockmap.Mapping) { m.PodUID = "a/b" },
		"no pod":     func(m *blockmap.Mapping) { m.PodUID = "" },
		"a new line": func(m *blockmap.Mapping) { m.LinkName = "a\nb" },
	} {
		m := n.mapping("pod")
		spoil(&m)
		require.ErrorIs(t, n.mapper.MapDevice(t.Context(), m), mount.ErrInvalid, name)
		require.ErrorIs(t, n.mapper.UnmapDevice(t.Context(), m), mount.ErrInvalid, name)
	}
	for path, want := range map[string]error{
		n.device.BackingPath: blockmap.ErrNotDevice, n.root: blockmap.ErrNotDevice, "/dev/null": blockmap.ErrNotDevice,
		filepath.Join(n.root, "missing"): os.ErrNotExist,
	} {
		m := n.mapping("pod")
		m.DevicePath = path
		require.ErrorIs(t, n.mapper.MapDevice(t.Context(), m), want, path)
		n.requireNothing(m)
	}
}

func TestADeviceIsResolvedToItsPath(t *testing.T) {
	n := newNode(t)
	byID := filepath.Join(n.root, "by-id")
	require.NoError(t, os.Symlink(n.device.Path, byID))
	require.NoError(t, os.Symlink("by-id", filepath.Join(n.root, "link")))
	for _, path := range []string{n.device.Path, byID, filepath.Join(n.root, "link")} {
		resolved, err := n.mapper.ResolveDevice(t.Context(), path)
		require.NoError(t, err)
		assert.Equal(t, n.device.Path, resolved)
	}
	for path, want := range map[string]error{
		n.device.BackingPath: blockmap.ErrNotDevice, n.root: blockmap.ErrNotDevice, "/dev/null": blockmap.ErrNotDevice,
		filepath.Join(n.root, "missing"): os.ErrNotExist,
	} {
		_, err := n.mapper.ResolveDevice(t.Context(), path)
		require.ErrorIs(t, err, want, path)
	}
}

func TestTheDirectoryOfTheBindsIsRemovedWhenItIsEmpty(t *testing.T) {
	n := newNode(t)
	m := n.mapping("pod")
	require.NoError(t, n.mapper.RemoveMapPath(t.Context(), m.GlobalMapPath), "nothing is there, nor above")
	require.NoError(t, n.mapper.MapDevice(t.Context(), m))
	require.ErrorIs(t, n.mapper.RemoveMapPath(t.Context(), m.GlobalMapPath), unix.ENOTEMPTY)
	n.requireMapped(m)
	require.NoError(t, n.mapper.UnmapDevice(t.Context(), m))
	require.NoError(t, n.mapper.RemoveMapPath(t.Context(), m.GlobalMapPath))
	assert.NoDirExists(t, m.GlobalMapPath)
	assert.DirExists(t, filepath.Dir(m.GlobalMapPath))
	require.NoError(t, n.mapper.RemoveMapPath(t.Context(), m.GlobalMapPath), "a second time")

	require.NoError(t, os.WriteFile(m.GlobalMapPath, nil, 0o600))
	require.ErrorIs(t, n.mapper.RemoveMapPath(t.Context(), m.GlobalMapPath), unix.ENOTDIR, "an empty file is not removed")
	require.NoError(t, os.Remove(m.GlobalMapPath))
	outside := filepath.Join(n.root, "outside")
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "volume"), 0o750))
	require.NoError(t, os.Symlink(outside, filepath.Join(n.root, "link")))
	require.Error(t, n.mapper.RemoveMapPath(t.Context(), filepath.Join(n.root, "link/volume")), "by way of a link")
	assert.DirExists(t, filepath.Join(outside, "volume"))
	require.ErrorIs(t, n.mapper.RemoveMapPath(t.Context(), "relative"), mount.ErrInvalid)
}

// TestOneOfThemGetsTheDevice: one maps a device while another mounts it.
func TestOneOfThemGetsTheDevice(t *testing.T) {
	n := newNode(t)
	if err := format.CanMake("ext4"); err != nil {
		t.Skipf("missing: %v", err)
	}
	image := filepath.Join(n.root, "ext4.img")
	require.NoError(t, os.WriteFile(image, make([]byte, 8<<20), 0o600))
	require.NoError(t, format.Make(t.Context(), image, format.MakeOptions{FSType: "ext4"}))
	device, err := n.loops.Attach(t.Context(), image, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, n.loops.Detach(context.WithoutCancel(t.Context()), device)) })
	n.device = device
	m, target := n.mapping("pod"), t.TempDir()
	var mounted, mapped int
	for range 16 {
		errs := make(chan error)
		go func() {
			errs <- n.loops.WhileUnheld(t.Context(), device.Path, func() error {
				return unix.Mount(device.Path, target, "ext4", unix.MS_RDONLY, "noload")
			})
		}()
		mapErr := n.mapper.MapDevice(t.Context(), m)
		mountErr := <-errs
		require.False(t, mapErr == nil && mountErr == nil, "both have it")
		for _, err := range []error{mapErr, mountErr} {
			require.True(t, err == nil || errors.Is(err, unix.EBUSY), "%v", err)
		}
		if mountErr == nil {
			mounted++
			require.NoError(t, unix.Unmount(target, 0))
		}
		if mapErr == nil {
			mapped++
			require.NoError(t, n.mapper.UnmapDevice(t.Context(), m))
		}
	}
	t.Logf("mounted %d times and mapped %d times", mounted, mapped)
}
