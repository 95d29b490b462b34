package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// while runs change in a goroutine of its own and measure again and again until change has returned.
func while(t *testing.T, change func() error, measure func()) {
	t.Helper()
	var over atomic.Bool
	result := make(chan error, 1)
	go func() {
		defer over.Store(true)
		result <- change()
	}()
	for !over.Load() && t.Context().Err() == nil {
		measure()
	}
	require.NoError(t, <-result)
}

// watch tells whether a directory, or what is in it, was opened or read.
func watch(t *testing.T, dir string) (seen func() bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	t.Cleanup(func() { closeFD(fd) })
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_ACCESS)
	require.NoError(t, err)
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 4096))
		if !errors.Is(err, unix.EAGAIN) {
			require.NoError(t, err)
		}
		return n > 0
	}
}

// TestSwappedLinksLeadNowhere swaps a directory and a file of the tree for links to what lies outside, a hundred thousand
// times. Nothing outside may be opened, nor be counted.
func TestSwappedLinksLeadNowhere(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	const inside, canaries, swaps = 20, 3000, 100_000
	for i := range inside {
		write(t, filepath.Join(root, "dir", fmt.Sprint(i)), 0)
	}
	for i := range canaries {
		write(t, filepath.Join(outside, fmt.Sprint(i)), 0)
	}
	big := filepath.Join(t.TempDir(), "big")
	write(t, big, 64<<20)
	write(t, filepath.Join(root, "file"), 1)
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "dirlink")))
	require.NoError(t, os.Symlink(big, filepath.Join(root, "filelink")))
	seen := watch(t, outside)
	fd, err := openAt(unix.AT_FDCWD, root, unix.O_PATH)
	require.NoError(t, err)
	defer closeFD(fd)

	walks := 0
	while(t, func() error {
		for range swaps / 2 {
			for _, pair := range [][2]string{{"dir", "dirlink"}, {"file", "filelink"}} {
				if err := unix.Renameat2(fd, pair[0], fd, pair[1], unix.RENAME_EXCHANGE); err != nil {
					return err
				}
			}
		}
		return nil
	}, func() {
		got, err := Measure(t.Context(), root)
		require.NoError(t, err)
		require.LessOrEqual(t, got.Inodes, int64(1+4+2*inside), "the directory may be met under both its names")
		require.Less(t, got.Bytes, int64(8<<20))
		walks++
	})
	assert.Greater(t, walks, 10)
	assert.False(t, seen(), "something outside was opened")
	_, err = os.ReadDir(outside)
	require.NoError(t, err)
	assert.True(t, seen(), "the watch works")
}

// TestWhatVanishesIsLeftOut deletes a tree while it is measured.
func TestWhatVanishesIsLeftOut(t *testing.T) {
	root := t.TempDir()
	for round := range 2 {
		for i := range 40 {
			for j := range 50 {
				write(t, filepath.Join(root, "doomed", fmt.Sprint(i), fmt.Sprint(i), fmt.Sprint(j)), 1)
			}
		}
		write(t, filepath.Join(root, fmt.Sprint("stays", round)), 5000)
		all := expected(t, root)
		while(t, func() error { return os.RemoveAll(filepath.Join(root, "doomed")) }, func() {
			got, err := Measure(t.Context(), root)
			require.NoError(t, err)
			require.LessOrEqual(t, got.Inodes, all.Inodes)
			require.GreaterOrEqual(t, got.Inodes, int64(2+round))
		})
		got, err := Measure(t.Context(), root)
		require.NoError(t, err)
		require.Equal(t, expected(t, root), got)
	}
}

// TestDirectoriesThatBecomeOtherThings replaces directories by files, links and pipes while they are measured.
func TestDirectoriesThatBecomeOtherThings(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	const canaries = 1000
	for i := range canaries {
		write(t, filepath.Join(outside, fmt.Sprint(i)), 0)
	}
	seen := watch(t, outside)
	victim := filepath.Join(root, "victim")
	makers := []func() error{
		func() error { return os.Mkdir(victim, 0o700) },
		func() error { return os.Symlink(outside, victim) },
		func() error { return unix.Mkfifo(victim, 0o600) },
		func() error { return os.WriteFile(victim, nil, 0o600) },
	}
	while(t, func() error {
		for i := range 600 {
			if err := errors.Join(makers[i%len(makers)](), os.Remove(victim)); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		got, err := Measure(t.Context(), root)
		require.NoError(t, err)
		require.LessOrEqual(t, got.Inodes, int64(3))
	})
	assert.False(t, seen(), "something outside was opened")
}

// TestMeasureOfATreeThatIsMovedAway moves a directory out of the tree while the walk is deep below it, and cannot keep
// open what is above. What is there afterwards must not be taken for what was there.
func TestMeasureOfATreeThatIsMovedAway(t *testing.T) {
	for name, replace := range map[string]bool{"gone": false, "another in its place": true} {
		t.Run(name, func(t *testing.T) {
			const depth, few = 60, 4
			deepest := strings.TrimSuffix(strings.Repeat("d/", depth), "/")
			files := map[string]string{deepest + "/bottom/": "", "other/" + deepest + "/": ""}
			for i := range depth {
				files[strings.Repeat("d/", i)+"a-sibling/"] = ""
				files["other/"+strings.Repeat("d/", i)+"a-sibling/"] = ""
			}
			server := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: files})
			root, before := server.Path(), openDescriptors(t)
			server.Hang(mounttest.FUSEReaddir, deepest+"/bottom")
			result := make(chan error, 1)
			go func() {
				_, err := walk(t.Context(), filepath.Join(root, "d"), treewalk.Options{Workers: 1, MaxOpen: few})
				result <- err
			}()
			server.Await(mounttest.FUSEReaddir)
			require.NoError(t, os.Rename(filepath.Join(root, "d/d"), filepath.Join(root, "moved")))
			if replace {
				require.NoError(t, os.Rename(filepath.Join(root, "other/d"), filepath.Join(root, "d/d")))
			}
			server.Heal()
			err := <-result
			require.ErrorIs(t, err, ErrChanged)
			var path *fs.PathError
			require.ErrorAs(t, err, &path)
			assert.Contains(t, path.Path, root)
			assert.Equal(t, before, openDescriptors(t))
		})
	}
}
