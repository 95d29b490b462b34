package ownership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func tmpfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	mountAt(t, "tmpfs", root, "tmpfs", 0)
	return root
}

func remount(root string, flags uintptr) error {
	return unix.Mount("", root, "", unix.MS_REMOUNT|flags, "")
}

func TestReadOnlyFilesystemEndsTheRun(t *testing.T) {
	mounttest.RequireRoot(t)
	root := tmpfs(t)
	grow(t, root, 500)
	require.NoError(t, remount(root, unix.MS_RDONLY))
	before := times(t, root)
	report, err := apply(t, root, Options{Workers: 1})
	require.ErrorIs(t, err, unix.EROFS)
	assert.EqualValues(t, 1, report.Failed, "the next file would fail in the same way")
	assert.False(t, report.Complete)
	assert.Equal(t, before, times(t, root))
}

func TestFilesystemThatGoesReadOnlyInTheMiddle(t *testing.T) {
	mounttest.RequireRoot(t)
	root := tmpfs(t)
	grow(t, root, 20_000)
	before := fileOf(t, root)
	flipped := make(chan error, 1)
	go func() { flipped <- flipInTheMiddle(t.Context(), root) }()
	report, err := apply(t, root, Options{Policy: &onRoot})
	require.NoError(t, <-flipped)
	require.ErrorIs(t, err, unix.EROFS)
	var path *fs.PathError
	require.ErrorAs(t, err, &path)
	assert.True(t, strings.HasPrefix(path.Path, root+"/d"), path.Path)
	assert.Positive(t, report.GroupChanged)
	assert.Positive(t, report.Failed)
	assert.False(t, report.Complete)
	assert.Equal(t, before, fileOf(t, root), "the root comes last")

	require.NoError(t, remount(root, 0))
	again := mustApply(t, root, Options{Policy: &onRoot})
	assert.Equal(t, rootGroup, again.Reason, "the interrupted run is seen")
	assert.True(t, again.Complete)
	assert.EqualValues(t, 1+20+400+20_000, report.GroupChanged+again.GroupChanged, "what was done is not done again")
}

// flipInTheMiddle makes the filesystem read-only as soon as something in it was changed. That is refused while a change is
// under way.
func flipInTheMiddle(ctx context.Context, root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	changed := func() bool {
		for _, e := range entries {
			var st unix.Stat_t
			if unix.Lstat(filepath.Join(root, e.Name()), &st) == nil && st.Gid == group {
				return true
			}
		}
		return false
	}
	for !changed() {
		runtime.Gosched()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	for {
		if err := remount(root, unix.MS_RDONLY); !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
			return err
		}
	}
}

// image mounts a new ext4 filesystem on a loop device.
func image(t *testing.T, size int64, mkfs []string, options string) (root, device string) {
	t.Helper()
	mounttest.RequireRoot(t)
	tool, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		tool = "/usr/sbin/mkfs.ext4"
	}
	if _, err := os.Stat(tool); err != nil {
		t.Skip("missing: mkfs.ext4")
	}
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, size))
	out, err := exec.CommandContext(t.Context(), tool, append(append([]string{"-q", "-F"}, mkfs...), file)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	loops := loop.New(loop.Options{})
	attached, err := loops.Attach(t.Context(), file, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), attached)) })
	root = t.TempDir()
	require.NoError(t, unix.Mount(attached.Path, root, "ext4", unix.MS_NOATIME, options))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(root, 0)) })
	return root, attached.Path
}

func syncfs(t *testing.T, root string) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Syncfs(fd))
}

func sectorsWritten(t *testing.T, device string) int64 {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(device), "stat"))
	require.NoError(t, err)
	n, err := strconv.ParseInt(strings.Fields(string(content))[6], 10, 64)
	require.NoError(t, err)
	return n
}

func TestWhereAllIsRightNothingIsWrittenToDisk(t *testing.T) {
	root, device := image(t, 64<<20, []string{"-E", "lazy_itable_init=0,lazy_journal_init=0"}, "")
	grow(t, root, 2000)
	before := sectorsWritten(t, device)
	first := mustApply(t, root, Options{})
	syncfs(t, root)
	assert.EqualValues(t, 2044, first.GroupChanged)
	after := sectorsWritten(t, device)
	require.Greater(t, after, before, "changes are seen by this test")
	for range 3 {
		mustApply(t, root, Options{})
		syncfs(t, root)
	}
	assert.Equal(t, after, sectorsWritten(t, device))
}

func TestFullFilesystemIsNoObstacle(t *testing.T) {
	root, _ := image(t, 16<<20, []string{"-m", "0"}, "")
	grow(t, root, 200)
	full, err := os.Create(filepath.Join(root, "full"))
	require.NoError(t, err)
	defer full.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = full.Write(block)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	report := mustApply(t, root, Options{})
	assert.True(t, report.Complete)
}

// fuseTree is a filesystem whose server is the test.
func fuseTree(t *testing.T, files int) *mounttest.FUSE {
	t.Helper()
	content := map[string]string{}
	for i := range files {
		content[fmt.Sprintf("d%d/f%d", i%3, i)] = ""
	}
	return mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: content})
}

func TestEveryErrnoOfAFilesystemIsReported(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.ESTALE, unix.EDQUOT, unix.EROFS} {
		f := fuseTree(t, 30)
		f.Fail(mounttest.FUSESetattr, errno, "d1/f4")
		report, err := apply(t, f.Path(), Options{Policy: &onRoot})
		require.ErrorIs(t, err, errno)
		assert.EqualValues(t, 1, report.Failed)
		assert.False(t, report.Complete)
		assert.Zero(t, fileOf(t, f.Path()).gid, "the root comes last")
		f.Heal()
		report = mustApply(t, f.Path(), Options{Policy: &onRoot})
		assert.True(t, report.Complete)
		assert.Equal(t, file{reg | 0o664, group}, fileOf(t, filepath.Join(f.Path(), "d1", "f4")))
	}
}

func TestDirectoryThatCannotBeReadIsAFailure(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, op := range []mounttest.FUSEOp{mounttest.FUSEOpendir, mounttest.FUSEReaddir, mounttest.FUSELookup} {
		f := fuseTree(t, 30)
		f.Fail(op, unix.EIO, "d1")
		report, err := apply(t, f.Path(), Options{})
		require.ErrorIs(t, err, unix.EIO)
		var path *fs.PathError
		require.ErrorAs(t, err, &path)
		assert.Equal(t, filepath.Join(f.Path(), "d1"), path.Path)
		assert.False(t, report.Complete)
		assert.GreaterOrEqual(t, report.Visited, int64(22), "the rest is done")
	}
}

func TestDeadServerEndsTheRun(t *testing.T) {
	mounttest.RequireRoot(t)
	f := fuseTree(t, 300)
	f.Kill()
	_, err := apply(t, f.Path(), Options{})
	require.ErrorIs(t, err, unix.ENOTCONN)
}

// TestHungFilesystemIsLeftBehind hangs each operation in turn. The caller comes back with its context; what is abandoned
// ends with the hang and touches the root no more; others are not held up.
func TestHungFilesystemIsLeftBehind(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, op := range []mounttest.FUSEOp{
		mounttest.FUSEGetattr, mounttest.FUSELookup, mounttest.FUSEOpendir, mounttest.FUSEReaddir, mounttest.FUSESetattr,
	} {
		f := fuseTree(t, 30)
		f.Hang(op)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := Apply(ctx, f.Path(), Options{Group: of(group)})
			result <- err
		}()
		f.Await(op)
		other := t.TempDir()
		grow(t, other, 50)
		mustApply(t, other, Options{})

		cancel()
		err := <-result
		require.ErrorIs(t, err, ErrUncertain)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, outcome.Uncertain, outcome.ClassOf(err))
		var lost *outcome.AbandonedError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, f.Path(), lost.Path)
		done := outcome.DoneOf(err)
		select {
		case <-done:
			t.Error("it has not ended yet")
		default:
		}
		f.Heal()
		select {
		case <-done:
		case <-t.Context().Done():
			t.Fatal("it has not ended")
		}
		st, err := f.Stat(".")
		require.NoError(t, err)
		assert.Zero(t, st.GID, "the root comes last")
		assert.True(t, mustApply(t, f.Path(), Options{}).Complete)
	}
}

// TestCancelledRunEndsAtOnce cancels a run of a filesystem that answers.
func TestCancelledRunEndsAtOnce(t *testing.T) {
	requireChown(t)
	root := t.TempDir()
	grow(t, root, 5_000)
	before := fileOf(t, root)
	run := func() (Report, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		defer cancel()
		return Apply(ctx, root, Options{Group: of(group), Policy: &onRoot})
	}
	report, err := run()
	for try := 0; errors.Is(err, ErrUncertain) && try < 20; try++ { // The machine was too busy to stop the work in time.
		<-outcome.DoneOf(err)
		report, err = run()
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrUncertain)
	assert.Nil(t, outcome.DoneOf(err))
	assert.Less(t, report.Visited, int64(5_106))
	assert.False(t, report.Complete)
	assert.Equal(t, before, fileOf(t, root))
	assert.True(t, mustApply(t, root, Options{Policy: &onRoot}).Complete)
}
