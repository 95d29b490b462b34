package mounttest_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func newFUSE(t *testing.T) *mounttest.FUSE {
	t.Helper()
	return mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"dir/file": "content", "empty/": ""}})
}

// receive returns what a call on the filesystem has returned. It is not waited for until all tests are killed.
func receive(t *testing.T, result <-chan error) error {
	t.Helper()
	patience := time.NewTimer(30 * time.Second)
	defer patience.Stop()
	select {
	case err := <-result:
		return err
	case <-patience.C:
		require.Fail(t, "the call hangs")
		return nil
	}
}

func TestFUSEIsAFilesystem(t *testing.T) {
	f := newFUSE(t)
	content, err := os.ReadFile(filepath.Join(f.Path(), "dir/file"))
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))

	name := filepath.Join(f.Path(), "dir/new")
	require.NoError(t, os.WriteFile(name, []byte("first"), 0o600))
	require.NoError(t, os.Chmod(name, 0o640))
	require.NoError(t, os.Lchown(name, 0, 0))
	require.NoError(t, os.Rename(name, filepath.Join(f.Path(), "renamed")))
	stat, err := f.Stat("renamed")
	require.NoError(t, err)
	assert.Equal(t, mounttest.FUSEStat{Mode: unix.S_IFREG | 0o640, Content: "first"}, stat)
	require.NoError(t, os.Truncate(filepath.Join(f.Path(), "renamed"), 2))
	stat, err = f.Stat("renamed")
	require.NoError(t, err)
	assert.Equal(t, "fi", stat.Content)

	require.NoError(t, os.Symlink("renamed", filepath.Join(f.Path(), "link")))
	to, err := os.Readlink(filepath.Join(f.Path(), "link"))
	require.NoError(t, err)
	assert.Equal(t, "renamed", to)
	require.ErrorIs(t, os.Remove(filepath.Join(f.Path(), "dir")), unix.ENOTEMPTY)
	require.NoError(t, os.Mkdir(filepath.Join(f.Path(), "empty/below"), 0o755))
	require.NoError(t, os.Remove(filepath.Join(f.Path(), "empty/below")))
	f.WriteFile("behind/file", "by another process")
	assert.Equal(t, []string{"behind", "dir", "empty", "link", "renamed"}, names(t, f.Path()))
	var statfs unix.Statfs_t
	require.NoError(t, unix.Statfs(f.Path(), &statfs))
	assert.EqualValues(t, 768, statfs.Bfree)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// fuseCall makes a system call that leads to the operation.
var fuseCall = map[mounttest.FUSEOp]func(dir string) error{
	mounttest.FUSELookup:  func(dir string) error { return unix.Access(dir+"/dir", unix.F_OK) },
	mounttest.FUSEGetattr: func(dir string) error { return unix.Lstat(dir, &unix.Stat_t{}) },
	mounttest.FUSESetattr: func(dir string) error { return os.Chmod(dir+"/dir/file", 0o600) },
	mounttest.FUSEStatfs:  func(dir string) error { return unix.Statfs(dir, &unix.Statfs_t{}) },
	mounttest.FUSEOpendir: func(dir string) error { _, err := os.ReadDir(dir); return err },
	mounttest.FUSEReaddir: func(dir string) error { _, err := os.ReadDir(dir); return err },
	mounttest.FUSEOpen:    func(dir string) error { _, err := os.ReadFile(dir + "/dir/file"); return err },
	mounttest.FUSERead:    func(dir string) error { _, err := os.ReadFile(dir + "/dir/file"); return err },
	mounttest.FUSEMkdir:   func(dir string) error { return os.Mkdir(dir+"/made", 0o755) },
	mounttest.FUSECreate:  func(dir string) error { return os.WriteFile(dir+"/created", nil, 0o600) },
	mounttest.FUSEWrite:   func(dir string) error { return os.WriteFile(dir+"/written", []byte("x"), 0o600) },
	mounttest.FUSESymlink: func(dir string) error { return os.Symlink("x", dir+"/link") },
	mounttest.FUSEUnlink:  func(dir string) error { return os.Remove(dir + "/dir/file") },
	mounttest.FUSERename:  func(dir string) error { return os.Rename(dir+"/dir", dir+"/renamed") },
	mounttest.FUSERmdir:   func(dir string) error { return unix.Rmdir(dir + "/empty") },
}

func TestFUSEFailsAsItIsTold(t *testing.T) {
	f := newFUSE(t)
	for op, call := range fuseCall {
		for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE, unix.ENOSPC, unix.EROFS} {
			f.Fail(op, errno)
			require.ErrorIs(t, call(f.Path()), errno, "operation %d", op)
			f.Heal()
		}
	}
	for op, call := range fuseCall {
		if op != mounttest.FUSERename && op != mounttest.FUSEUnlink && op != mounttest.FUSERmdir {
			require.NoError(t, call(f.Path()), "operation %d", op)
		}
	}
}

func TestFUSEFailsAtOnePathOnly(t *testing.T) {
	f := newFUSE(t)
	f.Fail(mounttest.FUSESetattr, unix.EROFS, "dir/file")
	require.ErrorIs(t, os.Chmod(f.Path()+"/dir/file", 0o600), unix.EROFS)
	require.NoError(t, os.Chmod(f.Path()+"/dir", 0o700))
	require.NoError(t, os.Chmod(f.Path(), 0o700))
	f.Fail(mounttest.FUSELookup, unix.EIO, "dir/file")
	require.ErrorIs(t, unix.Access(f.Path()+"/dir/file", unix.F_OK), unix.EIO)
	require.ErrorIs(t, unix.Access(f.Path()+"/dir/other", unix.F_OK), unix.ENOENT)
}

func TestFUSEHangsUntilItIsHealed(t *testing.T) {
	f := newFUSE(t)
	for _, op := range []mounttest.FUSEOp{mounttest.FUSELookup, mounttest.FUSEStatfs, mounttest.FUSERead} {
		f.Hang(op)
		result := make(chan error, 1)
		go func() { result <- fuseCall[op](f.Path()) }()
		f.Await(op)
		assert.Empty(t, result)
		f.Heal()
		require.NoError(t, receive(t, result))
	}
}

func TestFUSEAnswersWhatHangsAndHangsAgain(t *testing.T) {
	f := newFUSE(t)
	f.Hang(mounttest.FUSEAny)
	for _, errno := range []unix.Errno{unix.EINTR, unix.EACCES} {
		result := make(chan error, 1)
		go func() { result <- unix.Statfs(f.Path(), &unix.Statfs_t{}) }()
		f.Await(mounttest.FUSEStatfs)
		f.Answer(errno)
		require.ErrorIs(t, receive(t, result), errno)
	}
}

func TestFUSEServerDies(t *testing.T) {
	f := newFUSE(t)
	f.Hang(mounttest.FUSEStatfs)
	result := make(chan error, 1)
	go func() { result <- fuseCall[mounttest.FUSEStatfs](f.Path()) }()
	f.Await(mounttest.FUSEStatfs)
	f.Kill()
	require.ErrorIs(t, receive(t, result), unix.ECONNABORTED)
	require.ErrorIs(t, fuseCall[mounttest.FUSEGetattr](f.Path()), unix.ENOTCONN)
	f.Kill()
}

func TestFUSECountsItsRequests(t *testing.T) {
	f := newFUSE(t)
	before := f.Count(mounttest.FUSEAny)
	var stat unix.Statx_t
	const quiet = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	require.NoError(t, unix.Statx(unix.AT_FDCWD, f.Path(), quiet, 0, &stat))
	assert.Equal(t, before, f.Count(mounttest.FUSEAny))
	require.NoError(t, unix.Statfs(f.Path(), &unix.Statfs_t{}))
	assert.Equal(t, 1, f.Count(mounttest.FUSEStatfs))
}

// TestFUSEThatHangsIsAbortedWithItsTest runs a test that ends, by failing, while a call hangs.
func TestFUSEThatHangsIsAbortedWithItsTest(t *testing.T) {
	mounttest.RequireRoot(t)
	output, code := inner(t, "hang", "TMPDIR="+t.TempDir())
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "as was asked for")
	assert.Contains(t, output, "the call has ended: connection aborted")
}

func TestFUSEMayBeReadOnly(t *testing.T) {
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"file": ""}, ReadOnly: true})
	require.ErrorIs(t, os.Chmod(f.Path()+"/file", 0o600), unix.EROFS)
	assert.Zero(t, f.Count(mounttest.FUSESetattr))
}
