package mount_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// swaps is how often a name and a link to the host are exchanged while we work.
const swaps = 100_000

// swapWorld is a directory in which another process exchanges names for links to a directory that stands for the host's root.
type swapWorld struct {
	*mount.Mounter
	source, parent, link, host string
}

func newSwapWorld(t *testing.T, without mount.Feature) swapWorld {
	t.Helper()
	root := filepath.Join(t.TempDir(), "memory") // in which exchanging is quick
	m := mount.New(mount.Options{Without: without})
	mountTmpfs(t, m, root)
	w := swapWorld{m, root + "/source", root + "/parent", root + "/link", root + "/host"}
	for _, dir := range []string{w.source, w.parent, w.parent + "/target", w.host, w.host + "/target"} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	require.NoError(t, os.WriteFile(w.source+"/ours", nil, 0o600))
	require.NoError(t, os.WriteFile(w.parent+"/ours", nil, 0o600))
	require.NoError(t, os.WriteFile(w.host+"/canary", nil, 0o600))
	require.NoError(t, os.Symlink(w.host, w.link))
	return w
}

// race calls work again and again while the names are exchanged, and returns how often it succeeded. It fails when work
// ends with an error that is no refusal.
func race(t *testing.T, one, two string, work func() error) (succeeded int) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- exchange(one, two) }()
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			return succeeded
		default:
		}
		switch err := work(); {
		case err == nil:
			succeeded++
		case isRefusal(err):
		default:
			require.NoError(t, <-done)
			require.NoError(t, err)
		}
	}
}

func exchange(one, two string) error {
	for range swaps {
		err := unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, two, unix.RENAME_EXCHANGE)
		if err != nil && !errors.Is(err, unix.EBUSY) { // it is a mount point just now
			return err
		}
	}
	return nil
}

func isRefusal(err error) bool {
	for _, refusal := range []error{unix.ELOOP, unix.ENOTDIR, unix.ENOENT, mount.ErrNotMounted} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// eachWalk runs a race with openat2 and with the walk that stands in for it.
func eachWalk(t *testing.T, run func(t *testing.T, w swapWorld)) {
	t.Helper()
	mounttest.RequireMounts(t)
	for name, without := range map[string]mount.Feature{"openat2": 0, "walk": mount.FeatureOpenat2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, newSwapWorld(t, without))
		})
	}
}

// takeOffWherever takes off what was mounted at the name, whichever of the two directories has it now.
func (w swapWorld) takeOffWherever(name string) {
	for _, dir := range []string{w.parent, w.link} {
		for unix.Unmount(dir+name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
			continue
		}
	}
}

// hostIsWhole checks that nothing was mounted, made or removed in the place that stands for the host's root.
func (w swapWorld) hostIsWhole(t *testing.T) {
	t.Helper()
	for _, name := range []string{"canary", "target"} {
		_, err := os.Lstat(filepath.Join(w.host, name))
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(w.host)
	require.NoError(t, err)
	assert.Len(t, entries, 2)
	assert.False(t, isMounted(t, w.Mounter, w.host+"/target"), "the host was mounted over")
	assert.False(t, isMounted(t, w.Mounter, w.host), "the host was mounted over")
}

func TestLinkSwappedInAboveTheTargetDoesNotMoveTheMount(t *testing.T) {
	eachWalk(t, func(t *testing.T, w swapWorld) {
		landed := race(t, w.parent, w.link, func() error {
			err := w.Mount(t.Context(), mount.Request{
				Source: w.source, Target: w.parent + "/target", Options: []string{"bind", "ro"},
			})
			if err == nil {
				require.NoError(t, unix.Access(w.host+"/canary", unix.F_OK))
				require.ErrorIs(t, unix.Access(w.host+"/target/ours", unix.F_OK), unix.ENOENT, "the link was followed")
				w.takeOffWherever("/target")
			}
			return err
		})
		w.takeOffWherever("/target")
		w.hostIsWhole(t)
		assert.Positive(t, landed)
	})
}

func TestLinkSwappedInAboveTheTargetMakesNoDirectoryElsewhere(t *testing.T) {
	eachWalk(t, func(t *testing.T, w swapWorld) {
		race(t, w.parent, w.link, func() error {
			err := w.Mount(t.Context(), mount.Request{Target: w.parent + "/made/target", FSType: "no-such-filesystem"})
			if errors.Is(err, mount.ErrUnsupported) {
				return nil
			}
			return err
		})
		w.hostIsWhole(t)
	})
}

func TestLinkSwappedInForTheTargetIsNotMountedOver(t *testing.T) {
	eachWalk(t, func(t *testing.T, w swapWorld) {
		landed := race(t, w.parent, w.link, func() error {
			err := w.Mount(t.Context(), mount.Request{Source: w.source, Target: w.parent, Options: []string{"bind"}})
			if err == nil {
				require.NoError(t, unix.Access(w.host+"/canary", unix.F_OK), "the link was followed")
				w.takeOffWherever("")
			}
			return err
		})
		w.takeOffWherever("")
		w.hostIsWhole(t)
		assert.Positive(t, landed)
	})
}

func TestLinkSwappedInAboveTheTargetUnmountsNothingElsewhere(t *testing.T) {
	eachWalk(t, func(t *testing.T, w swapWorld) {
		require.NoError(t, unix.Mount(w.source, w.host+"/target", "", unix.MS_BIND, ""))
		defer func() { _ = unix.Unmount(w.host+"/target", unix.MNT_DETACH) }()
		race(t, w.parent, w.link, func() error { return w.Unmount(t.Context(), w.parent+"/target", mount.UnmountOptions{Lazy: true}) })
		require.NoError(t, unix.Access(w.host+"/target/ours", unix.F_OK), "the mount behind the link was taken off")
	})
}

func TestLinkSwappedInAboveTheTargetRemovesNothingElsewhere(t *testing.T) {
	eachWalk(t, func(t *testing.T, w swapWorld) {
		removed := race(t, w.parent, w.link, func() error {
			err := w.RemoveTarget(t.Context(), w.parent+"/target")
			require.NoError(t, unix.Access(w.host+"/target", unix.F_OK), "the directory behind the link was removed")
			return err
		})
		assert.Positive(t, removed)
		w.hostIsWhole(t)
	})
}

// TestLinkSwappedInAtTheSourceIsNotFollowedByADescriptor opens the source as doc.go says, and binds the descriptor.
func TestLinkSwappedInAtTheSourceIsNotFollowedByADescriptor(t *testing.T) {
	eachWalk(t, func(t *testing.T, w swapWorld) {
		target := w.source + "/target" // beside what is swapped
		require.NoError(t, os.Mkdir(target, 0o755))
		how := unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		}
		root, err := unix.Open(filepath.Dir(w.parent), unix.O_PATH|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(root)
		bound := race(t, w.parent, w.link, func() error {
			source, err := unix.Openat2(root, filepath.Base(w.parent), &how)
			if err != nil {
				return err
			}
			defer unix.Close(source)
			require.NoError(t, w.Mount(t.Context(), mount.Request{
				Source: "/proc/self/fd/" + strconv.Itoa(source), Target: target, Options: []string{"bind"},
			}))
			defer func() { _ = unix.Unmount(target, unix.MNT_DETACH) }()
			require.NoError(t, unix.Access(target+"/ours", unix.F_OK))
			require.ErrorIs(t, unix.Access(target+"/canary", unix.F_OK), unix.ENOENT, "the host was bound")
			return nil
		})
		assert.Positive(t, bound)
	})
}

// odd makes what is no directory, by the name of what it is.
func odd(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths := map[string]string{"fifo": dir + "/fifo", "socket": dir + "/socket", "file": dir + "/file"}
	require.NoError(t, unix.Mkfifo(paths["fifo"], 0o600))
	require.NoError(t, unix.Mknod(paths["socket"], unix.S_IFSOCK|0o600, 0))
	require.NoError(t, os.WriteFile(paths["file"], []byte("content"), 0o600))
	device := dir + "/device"
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err == nil { // a user namespace may make none
		paths["device"] = device
	}
	return paths
}

func TestDeviceOrFifoInPlaceOfADirectoryIsRefusedWithoutOpeningIt(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		source := t.TempDir()
		for name, path := range odd(t, t.TempDir()) {
			for _, target := range []string{path, path + "/below"} {
				ctx := t.Context()
				require.ErrorIs(t, m.Mount(ctx, mount.Request{Target: target, FSType: "tmpfs"}), unix.ENOTDIR, name)
				bind := mount.Request{Source: source, Target: target, Options: []string{"bind"}}
				require.ErrorIs(t, m.Mount(ctx, bind), unix.ENOTDIR, name)
				require.ErrorIs(t, m.Unmount(ctx, target, plain), mount.ErrNotMounted, name)
			}
			assert.False(t, isMounted(t, m, path))
			require.Error(t, m.RemoveTarget(t.Context(), path), name)
			_, err := os.Lstat(path)
			require.NoError(t, err, "%s was removed", name)
		}
	})
}

func TestFifoIsBoundWithoutWaitingForItsOtherEnd(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		for name, path := range odd(t, t.TempDir()) {
			target := filepath.Join(t.TempDir(), "target")
			require.NoError(t, m.Mount(t.Context(), mount.Request{Source: path, Target: target, Options: []string{"bind"}}), name)
			assert.True(t, isMounted(t, m, target))
			require.NoError(t, mount.UnmountPath(t.Context(), m, target, plain), name)
		}
	})
}

func TestMountInsideOfWhatIsRemovedKeepsItsContent(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		host, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
		canary := filepath.Join(host, "canary")
		require.NoError(t, os.WriteFile(canary, []byte("content"), 0o600))
		inner := filepath.Join(target, "inner")
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: host, Target: inner, Options: []string{"bind"}}))
		require.ErrorIs(t, mount.UnmountPath(t.Context(), m, target, plain), unix.ENOTEMPTY)
		mountTmpfs(t, m, target)
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: host, Target: inner, Options: []string{"bind"}}))
		require.ErrorIs(t, mount.UnmountPath(t.Context(), m, target, plain), unix.EBUSY)
		require.NoError(t, m.Unmount(t.Context(), inner, plain))
		require.NoError(t, m.Unmount(t.Context(), target, plain))
		require.NoError(t, m.Unmount(t.Context(), inner, plain))
		content, err := os.ReadFile(canary)
		require.NoError(t, err)
		assert.Equal(t, "content", string(content))
	})
}

func TestBindOverWhatIsCleanedUpIsLeftAlone(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		host, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
		canary := filepath.Join(host, "canary")
		require.NoError(t, os.WriteFile(canary, nil, 0o600))
		mountTmpfs(t, m, target)
		ours := mount.UnmountOptions{Expect: lineOf(t, m, target).Identity(), Lazy: true}
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: host, Target: target, Options: []string{"bind"}}))
		require.ErrorIs(t, mount.UnmountPath(t.Context(), m, target, ours), mount.ErrForeign)
		require.ErrorIs(t, m.RemoveTarget(t.Context(), target), unix.EBUSY)
		require.NoError(t, unix.Access(canary, unix.F_OK))
		assert.Equal(t, 2, mountsAt(t, m, target))
		require.NoError(t, m.Unmount(t.Context(), target, plain))
	})
}

// TestForeignMountAtTheLastMomentIsNotTakenOff mounts on top between the check and the unmount.
func TestForeignMountAtTheLastMomentIsNotTakenOff(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		const rounds = 50
		f := foreigner{target: filepath.Join(t.TempDir(), "target"), stop: make(chan struct{}), stolen: make(chan int, 1)}
		require.NoError(t, os.Mkdir(f.target, 0o755))
		t.Cleanup(func() {
			for unix.Unmount(f.target, unix.MNT_DETACH) == nil {
				continue
			}
		})
		go f.run(t)
		ended, foreign := 0, 0
		for range rounds {
			ours := f.mountOurs(t)
			err := m.Unmount(t.Context(), f.target, mount.UnmountOptions{Expect: ours})
			switch {
			case err == nil:
				ended++
			case errors.Is(err, mount.ErrForeign):
				foreign++
			case !errors.Is(err, unix.EBUSY) && !errors.Is(err, mount.ErrTransient): // the table may change all the time
				assert.NoError(t, err)
			}
			f.unmountOurs()
		}
		close(f.stop)
		assert.Zero(t, <-f.stolen, "mounts that were not ours were taken off")
		t.Logf("%d of the own mounts were unmounted; %d times a foreign mount was on top", ended, foreign)
	})
}

// foreigner mounts on the target and takes that off again. The lock keeps what the test itself does out of its way.
type foreigner struct {
	target string
	stop   chan struct{}
	stolen chan int // how often its mount was gone
	mu     sync.Mutex
}

func (f *foreigner) run(t *testing.T) {
	other, stolen := mount.New(mount.Options{}), 0
	for {
		select {
		case <-f.stop:
			f.stolen <- stolen
			return
		default:
			if !f.comeAndGo(t, other) {
				stolen++
			}
		}
	}
}

// comeAndGo reports whether the mount was still there when it was to go.
func (f *foreigner) comeAndGo(t *testing.T, m *mount.Mounter) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if unix.Mount("foreign", f.target, "tmpfs", 0, "") != nil {
		return true
	}
	for range 20 {
		runtime.Gosched()
	}
	table, err := m.List(t.Context())
	if err != nil {
		return true
	}
	there := slices.ContainsFunc(table, func(mp mount.MountPoint) bool {
		return mp.Path == f.target && mp.Source == "foreign"
	})
	for there && errors.Is(unix.Unmount(f.target, 0), unix.EBUSY) {
		continue
	}
	return there
}

func (f *foreigner) mountOurs(t *testing.T) mount.Identity {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.NoError(t, unix.Mount("ours", f.target, "tmpfs", 0, ""))
	found, err := mount.New(mount.Options{}).Lookup(t.Context(), f.target)
	require.NoError(t, err)
	return found.Identity()
}

func (f *foreigner) unmountOurs() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for unix.Unmount(f.target, unix.MNT_DETACH) == nil {
		continue
	}
}

// TestNoProgramIsRun mounts and unmounts in a process that the kernel kills when any of its threads starts a process or
// runs a program; another run shows that it does.
func TestNoProgramIsRun(t *testing.T) {
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	for name, wantKilled := range map[string]bool{"noexec": false, "exec": true} {
		program := filepath.Join(dir, "mount."+name)
		require.NoError(t, os.Symlink(ownProgram, program))
		work := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(work, 0o755))
		cmd := exec.CommandContext(t.Context(), program, work, "")
		output, err := cmd.CombinedOutput()
		killed := cmd.ProcessState != nil && !cmd.ProcessState.Exited()
		assert.Equal(t, wantKilled, killed, "%v: %s", err, output)
		if !wantKilled {
			require.NoError(t, err, "%s", output)
		}
	}
}

// forbidExec lets the kernel kill this process when it runs a program.
func forbidExec() error {
	const (
		load, ret          = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_RET
		ifEqual, ifSet     = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		kill, allow, errno = 0x80000000, 0x7fff0000, 0x00050000 // SECCOMP_RET_...
		number, flags      = 0, 16                              // offsets in struct seccomp_data
	)
	filter := []unix.SockFilter{
		{Code: load, K: number},
		{Code: ifEqual, K: unix.SYS_EXECVE, Jt: 7},
		{Code: ifEqual, K: unix.SYS_EXECVEAT, Jt: 6},
		{Code: ifEqual, K: unix.SYS_CLONE3, Jt: 4}, // the caller then makes the thread by clone
		{Code: ifEqual, K: unix.SYS_CLONE, Jf: 2},
		{Code: load, K: flags},
		{Code: ifSet, K: unix.CLONE_THREAD, Jf: 2}, // a thread, and no process
		{Code: ret, K: allow},
		{Code: ret, K: errno | uint32(unix.ENOSYS)},
		{Code: ret, K: kill},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const setFilter, allThreads = 1, 1 // SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		return failed
	}
	return nil
}
