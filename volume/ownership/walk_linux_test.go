package ownership

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func mountAt(t *testing.T, source, target, fsType string, flags uintptr) {
	t.Helper()
	require.NoError(t, unix.Mount(source, target, fsType, flags, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(target, 0)) })
}

func TestWhatIsMountedInsideIsLeftAlone(t *testing.T) {
	mounttest.RequireRoot(t)
	everyWay(t, func(t *testing.T, without feature) {
		root, outside := t.TempDir(), t.TempDir()
		put(t, filepath.Join(outside, "dir", "canary"), file{reg | 0o600, 0})
		for _, name := range []string{"tmpfs", "bind", "same"} {
			put(t, filepath.Join(root, name), file{dir | 0o755, 0})
		}
		put(t, filepath.Join(root, "dir", "file"), file{reg | 0o600, 0})
		put(t, filepath.Join(root, "dir", "other"), file{reg | 0o600, 0})
		mountAt(t, "tmpfs", filepath.Join(root, "tmpfs"), "tmpfs", 0)
		put(t, filepath.Join(root, "tmpfs", "canary"), file{reg | 0o600, 0})
		mountAt(t, filepath.Join(outside, "dir"), filepath.Join(root, "bind"), "", unix.MS_BIND)
		mountAt(t, filepath.Join(root, "dir"), filepath.Join(root, "same"), "", unix.MS_BIND)
		mountAt(t, filepath.Join(outside, "dir", "canary"), filepath.Join(root, "dir", "file"), "", unix.MS_BIND)
		untouched := []string{
			filepath.Join(root, "tmpfs"), filepath.Join(root, "tmpfs", "canary"),
			filepath.Join(outside, "dir"), filepath.Join(outside, "dir", "canary"),
		}
		var before []file
		for _, path := range untouched {
			before = append(before, fileOf(t, path))
		}
		report := mustApply(t, root, Options{without: without})
		assert.Equal(t, Counts{Visited: 3, GroupChanged: 3, ModeChanged: 3, Mounts: 4}, report.Counts)
		assert.True(t, report.Complete)
		for i, path := range untouched {
			assert.Equal(t, before[i], fileOf(t, path), path)
		}
		assert.Equal(t, file{reg | 0o660, group}, fileOf(t, filepath.Join(root, "dir", "other")))
	})
}

// A mount that hangs inside a volume that does not must not be waited for.
func TestHungMountInsideIsNotWaitedFor(t *testing.T) {
	mounttest.RequireRoot(t)
	everyWay(t, func(t *testing.T, without feature) {
		root := t.TempDir()
		put(t, filepath.Join(root, "hung"), file{dir | 0o755, 0})
		f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Target: filepath.Join(root, "hung")})
		f.Hang(mounttest.FUSEAny)
		report := mustApply(t, root, Options{without: without})
		assert.EqualValues(t, 1, report.Mounts)
		assert.True(t, report.Complete)
		f.Heal()
	})
}

// swaps is how often an attacker at least swaps a name while trees are changed, and leastRuns how often they are changed.
const (
	swaps     = 100_000
	leastRuns = 10
)

// TestLinkThatIsSwappedInIsNeverFollowed has an attacker exchange a directory and a file for links to a tree outside, a
// hundred thousand times, while the tree is changed over and over.
func TestLinkThatIsSwappedInIsNeverFollowed(t *testing.T) {
	requireChown(t)
	for name, without := range map[string]feature{"all": 0, "none": allFeatures} {
		t.Run(name, func(t *testing.T) { testSwappedLinks(t, without) })
	}
}

func testSwappedLinks(t *testing.T, without feature) {
	root, outside := t.TempDir(), t.TempDir()
	put(t, filepath.Join(outside, "sub", "canary"), file{reg | 0o600, 0})
	put(t, filepath.Join(outside, "file"), file{reg | 0o600, 0})
	put(t, filepath.Join(root, "dir", "sub", "canary"), file{reg | 0o600, 0})
	put(t, filepath.Join(root, "file"), file{reg | 0o600, 0})
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "dir-link")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "file"), filepath.Join(root, "file-link")))
	before := times(t, outside)
	runs := underAttack(t, root, swaps, [][2]string{{"dir", "dir-link"}, {"file", "file-link"}}, func(gid int64) error {
		_, err := Apply(t.Context(), root, Options{Group: of(gid), without: without})
		return err
	})
	t.Logf("%d runs while %d names or more were swapped", runs, swaps)
	for path, then := range before {
		assert.Equal(t, then[0], times(t, outside)[path][0], "change time of %s", path)
	}
	assert.Zero(t, fileOf(t, filepath.Join(outside, "sub", "canary")).gid)
}

// underAttack swaps each pair of names in turn while it calls apply with another group each time, so that each call has
// something to change. It returns how often it was called while names were swapped: leastRuns times or more, also on a busy
// machine.
func underAttack(t *testing.T, root string, swaps int, pairs [][2]string, apply func(gid int64) error) (runs int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	done := make(chan error, 1)
	var enough atomic.Bool
	defer enough.Store(true) // also if apply fails
	go func() {
		var err error
		for i := 0; i < swaps || !enough.Load(); i++ {
			pair := pairs[i%len(pairs)]
			err = errors.Join(err, unix.Renameat2(fd, pair[0], fd, pair[1], unix.RENAME_EXCHANGE))
		}
		done <- err
	}()
	for ; ; runs++ {
		require.NoError(t, apply(int64(group+runs%2)))
		enough.Store(runs >= leastRuns)
		select {
		case err := <-done:
			require.NoError(t, err)
			return runs
		default:
		}
	}
}

// TestModeOfOneFileNeverReachesAnother has an attacker exchange its own setuid program, which all may run, for another user's
// program, which they may not. A change of modes by name would give the bits of the one to the other.
func TestModeOfOneFileNeverReachesAnother(t *testing.T) {
	requireChown(t)
	for _, without := range []feature{0, featureFchmodat2} {
		root := t.TempDir()
		mine, theirs := filepath.Join(root, "mine"), filepath.Join(root, "theirs")
		put(t, mine, file{reg | 0o4777, 0})
		put(t, theirs, file{reg | 0o600, 0})
		victim, err := os.Open(theirs)
		require.NoError(t, err)
		defer victim.Close()
		attacker, err := os.Open(mine)
		require.NoError(t, err)
		defer attacker.Close()
		worst := uint32(0)
		runs := underAttack(t, root, swaps/10, [][2]string{{"mine", "theirs"}}, func(gid int64) error {
			_, err := Apply(t.Context(), root, Options{Group: of(gid), without: without})
			var st unix.Stat_t
			err = errors.Join(err, unix.Fstat(int(victim.Fd()), &st))
			worst |= st.Mode & 0o7777
			// Once more from the start, so that each call has both modes to change.
			return errors.Join(err, victim.Chmod(0o600), unix.Fchmod(int(attacker.Fd()), 0o4707))
		})
		t.Logf("%d runs", runs)
		assert.Equal(t, uint32(0o660), worst, "%o", worst)
	}
}

// TestWhatVanishesIsNoFailure removes and makes files and directories while trees are changed.
func TestWhatVanishesIsNoFailure(t *testing.T) {
	requireChown(t)
	root := t.TempDir()
	grow(t, root, 1000)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			sub := filepath.Join(root, "d0", fmt.Sprint("s", i%20))
			_ = os.RemoveAll(sub)
			_ = os.Mkdir(sub, 0o755)
			for j := range 50 {
				_ = os.WriteFile(filepath.Join(sub, fmt.Sprint("f", j)), nil, 0o600)
			}
		}
	}()
	var vanished int64
	for i := 0; vanished < 3 && i < 5000; i++ {
		report, err := Apply(t.Context(), root, Options{Group: of(int64(group + i%2))})
		if !assert.NoError(t, err) {
			break
		}
		vanished += report.Vanished
	}
	close(stop)
	<-ended
	assert.Positive(t, vanished, "nothing has vanished under it")
}

// TestWorkDoesNotAllocateForFiles holds that a run costs few allocations however many files there are.
func TestWorkDoesNotAllocateForFiles(t *testing.T) {
	requireChown(t)
	root := t.TempDir()
	grow(t, root, 2000)
	gid := int64(group)
	for name, change := range map[string]bool{"changed": true, "right": false} {
		got := testing.AllocsPerRun(3, func() {
			if change {
				gid++
			}
			_, err := Apply(t.Context(), root, Options{Group: &gid})
			assert.NoError(t, err)
		})
		assert.Less(t, got, 500.0, name)
	}
}

func TestDescriptorsAreClosed(t *testing.T) {
	requireChown(t)
	root := t.TempDir()
	grow(t, root, 300)
	// Those in the trees of the tests. What else a process has open may change at any time.
	open := func() (n int) {
		links, err := filepath.Glob("/proc/self/fd/*")
		require.NoError(t, err)
		for _, link := range links {
			if path, err := os.Readlink(link); err == nil && strings.HasPrefix(path, os.TempDir()) {
				n++
			}
		}
		return n
	}
	before := open()
	everyWay(t, func(t *testing.T, without feature) {
		mustApply(t, root, Options{without: without})
		mustApply(t, filepath.Join(root, "d0", "s0", "f0"), Options{without: without})
		_, err := apply(t, filepath.Join(root, "missing"), Options{without: without})
		require.Error(t, err)
	})
	assert.Equal(t, before, open())
}

// TestSetgidThatIsNotKeptIsAFailure changes a directory as a user who may not set setgid. The kernel then drops the bit without an
// error.
func TestSetgidThatIsNotKeptIsAFailure(t *testing.T) {
	requireChown(t)
	root := t.TempDir()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	w := newWork(root, Options{Group: of(group)})
	v := w.visitor(probe(0))
	var st unix.Statx_t
	require.Zero(t, statxFD(fd, &st))
	var op string
	withoutCapability(t, unix.CAP_FSETID, func() { op, err = v.apply(fd, &st) })
	require.ErrorIs(t, err, ErrNotKept)
	assert.Equal(t, "chown", op)
}

// withoutCapability calls f on a thread that has one capability less.
func withoutCapability(t *testing.T, capability int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &had[0]))
	few := had
	few[0].Effective &^= 1 << capability
	require.NoError(t, unix.Capset(&header, &few[0]))
	f()
	require.NoError(t, unix.Capset(&header, &had[0]))
}

func TestCallsAtOnce(t *testing.T) {
	requireChown(t)
	root := t.TempDir()
	grow(t, root, 500)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			report, err := Apply(t.Context(), root, Options{Group: of(group)})
			assert.NoError(t, err)
			assert.True(t, report.Complete)
		})
	}
	all.Wait()
	assert.Zero(t, mustApply(t, root, Options{}).GroupChanged)
}
