package freeze_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
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

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// newFilesystem mounts an ext4 of its own until the end of the test, and returns its open root.
func newFilesystem(t *testing.T) *os.File {
	t.Helper()
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	file, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, file.Truncate(32<<20))
	if err := format.MakeFile(t.Context(), file, format.MakeOptions{FSType: "ext4"}); err != nil {
		require.ErrorIs(t, err, format.ErrNoTool)
		missing(t, err.Error())
	}
	require.NoError(t, file.Close())
	loops := loop.New(loop.Options{})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		found, err := loops.Find(ctx, image)
		if err == nil {
			err = loops.Detach(ctx, found)
		}
		assert.NoError(t, err)
	})
	target := filepath.Join(dir, "target")
	mounter := mount.New(mount.Options{})
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: device.Path, Target: target, FSType: "ext4"}))
	t.Cleanup(func() { assert.NoError(t, unmount(target)) })
	root, err := os.Open(target)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

// unmount waits for the guard of a process that was killed or stopped, which has the directory open until it has ended.
func unmount(target string) error {
	for {
		if err := unix.Unmount(target, 0); !errors.Is(err, unix.EBUSY) {
			return err
		}
		runtime.Gosched()
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing, and under CI nothing is skipped: %s", what)
	}
	t.Skipf("missing: %s", what)
}

// writing is a write that was begun.
func writing(dir *os.File, name string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(filepath.Join(dir.Name(), name), []byte("content"), 0o644) }()
	return done
}

func frozen(t *testing.T, dir *os.File, limit time.Duration) *freeze.Frozen {
	t.Helper()
	f, err := freeze.Freeze(dir, limit)
	require.NoError(t, err)
	return f
}

func TestAWriterWaitsUntilThaw(t *testing.T) {
	dir := newFilesystem(t)
	f := frozen(t, dir, time.Hour)
	_, err := freeze.Freeze(dir, time.Hour)
	require.ErrorIs(t, err, freeze.ErrFrozen)
	done := writing(dir, "file")
	assert.NoFileExists(t, filepath.Join(dir.Name(), "file"))
	require.NoError(t, f.Thaw())
	require.NoError(t, <-done)
	require.NoError(t, f.Thaw(), "what the first call has returned")
	was, err := freeze.ThawLeft(dir)
	require.NoError(t, err)
	assert.False(t, was)
}

func TestTheLimitThaws(t *testing.T) {
	dir := newFilesystem(t)
	f := frozen(t, dir, time.Second)
	require.NoError(t, <-writing(dir, "file"))
	require.ErrorIs(t, f.Thaw(), freeze.ErrLimit)
	require.ErrorIs(t, f.Thaw(), freeze.ErrThawed)
}

func TestAFreezeThatTakesTooLongIsUndone(t *testing.T) {
	dir := newFilesystem(t)
	_, err := freeze.Freeze(dir, time.Nanosecond)
	require.ErrorIs(t, err, freeze.ErrLimit)
	require.NoError(t, <-writing(dir, "file"))
}

// A supervisor that ends all processes of a unit does not end the guard before its process.
func TestTheGuardOutlivesTheSignalsOfASupervisor(t *testing.T) {
	dir := newFilesystem(t)
	process := freezer(t, dir, "1h")
	for _, guard := range children(t, process.Process.Pid) {
		for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
			require.NoError(t, unix.Kill(guard, signal))
		}
	}
	done := writing(dir, "file")
	require.NoError(t, process.Process.Signal(unix.SIGKILL))
	require.NoError(t, <-done)
}

// children returns the processes that a process has started, which is at least one.
func children(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	var all []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		require.NoError(t, err)
		for one := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(one)
			require.NoError(t, err)
			all = append(all, child)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// A guard that does not run freezes nothing.
func TestAGuardThatDoesNotRunIsNone(t *testing.T) {
	dir := newFilesystem(t)
	path, err := filepath.EvalSymlinks("/usr/bin/timeout")
	if err != nil {
		missing(t, "timeout")
	}
	broken := filepath.Join(t.TempDir(), "timeout")
	require.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\nexit 1\n"), 0o755))
	require.NoError(t, unix.Mount(broken, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(path, 0)) })
	_, err = freeze.Freeze(dir, time.Hour)
	require.ErrorIs(t, err, freeze.ErrNoGuard)
	require.NoError(t, <-writing(dir, "file"))
}

func TestAnotherThawIsSeen(t *testing.T) {
	dir := newFilesystem(t)
	f := frozen(t, dir, time.Hour)
	was, err := freeze.ThawLeft(dir)
	require.NoError(t, err)
	assert.True(t, was)
	err = f.Thaw()
	require.ErrorIs(t, err, freeze.ErrThawed)
	require.NotErrorIs(t, err, freeze.ErrLimit)
}

func TestWhatCannotBeFrozen(t *testing.T) {
	mounttest.RequireRoot(t)
	target := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", target, "tmpfs", 0, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(target, 0)) })
	dir, err := os.Open(target)
	require.NoError(t, err)
	defer dir.Close()
	_, err = freeze.Freeze(dir, time.Hour)
	require.ErrorIs(t, err, mount.ErrUnsupported)
}

func TestNothingIsFrozenWithoutAGuard(t *testing.T) {
	dir := newFilesystem(t)
	empty := t.TempDir()
	path, err := exec.LookPath("fsfreeze")
	if err != nil {
		missing(t, "fsfreeze")
	}
	place, err := filepath.EvalSymlinks(filepath.Dir(path))
	require.NoError(t, err)
	require.NoError(t, unix.Mount(empty, place, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(place, 0)) })
	_, err = freeze.Freeze(dir, time.Hour)
	require.ErrorIs(t, err, freeze.ErrNoGuard)
	require.NoError(t, <-writing(dir, "file"))
}

const freezerVariable = "VOLUMEKIT_TEST_FREEZE"

// freezeForEver is another process, which freezes the directory of the variable and waits to be killed or stopped.
func freezeForEver() {
	dir, err := os.Open(os.Getenv(freezerVariable))
	if err == nil {
		limit, _ := time.ParseDuration(os.Getenv(freezerVariable + "_LIMIT"))
		_, err = freeze.Freeze(dir, limit)
	}
	fmt.Println(err)
	select {}
}

// freezer starts another process, which has frozen dir when freezer returns.
func freezer(t *testing.T, dir *os.File, limit string) *exec.Cmd {
	t.Helper()
	process := exec.Command("/proc/self/exe")
	process.Env = append(os.Environ(), freezerVariable+"="+dir.Name(), freezerVariable+"_LIMIT="+limit)
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "<nil>\n", line)
	return process
}

func TestAKilledProcessLeavesNothingFrozen(t *testing.T) {
	dir := newFilesystem(t)
	process := freezer(t, dir, "1h")
	done := writing(dir, "file")
	require.NoError(t, process.Process.Signal(unix.SIGKILL))
	require.NoError(t, <-done)
}

func TestAStoppedProcessKeepsNothingFrozen(t *testing.T) {
	dir := newFilesystem(t)
	process := freezer(t, dir, "1s")
	require.NoError(t, process.Process.Signal(unix.SIGSTOP))
	require.NoError(t, <-writing(dir, "file"))
}
