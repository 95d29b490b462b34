package atomicwriter

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
)

var errStopped = errors.New("stopped here")

var (
	oldPayload = payload{
		"same": {Data: []byte("same"), Mode: 0o644}, "data": {Data: []byte("old"), Mode: 0o644},
		"gone": {Data: []byte("old"), Mode: 0o600}, "was/a/directory": {Data: []byte("old"), Mode: 0o600},
	}
	newPayload = payload{
		"same": {Data: []byte("same"), Mode: 0o644}, "data": {Data: []byte("new"), Mode: 0o644},
		"added": {Data: []byte("new"), Mode: 0o600}, "d/e/f": {Data: []byte("new"), Mode: 0o600}, "d/e/g": {Mode: 0o600},
	}
)

// starts are what a Write of newPayload finds.
var starts = map[string]func(t *testing.T, dir string){
	"nothing": func(*testing.T, string) {},
	"the old set": func(t *testing.T, dir string) {
		mustWrite(t, newWriter(t, dir, Options{}), oldPayload)
	},
	"the old set and leftovers": func(t *testing.T, dir string) {
		mustWrite(t, newWriter(t, dir, Options{}), oldPayload)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "..2020_01_01_00_00_00.1", "half", "done"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "..2020_01_01_00_00_00.1", "half", "f"), nil, 0o600))
		require.NoError(t, os.Symlink("..2020_01_01_00_00_00.1", filepath.Join(dir, newDataLink)))
		require.NoError(t, os.Remove(filepath.Join(dir, "same")))
	},
	"the new set and leftovers": func(t *testing.T, dir string) {
		mustWrite(t, newWriter(t, dir, Options{}), newPayload)
		require.NoError(t, os.Mkdir(filepath.Join(dir, "..2020_01_01_00_00_00.1"), 0o755))
		require.NoError(t, os.Symlink("..data/gone", filepath.Join(dir, "gone")))
		require.NoError(t, os.Remove(filepath.Join(dir, "d")))
	},
}

// requireOldOrNew holds that what is published is one of the two payloads, whole.
func requireOldOrNew(t *testing.T, dir string) {
	t.Helper()
	current := published(dir)
	if current == "" {
		return
	}
	require.True(t, isSetName(current))
	p := newPayload
	if _, err := os.Lstat(filepath.Join(dir, current, "gone")); err == nil {
		p = oldPayload
	}
	for name, f := range p {
		content, err := os.ReadFile(filepath.Join(dir, dataLink, name))
		require.NoError(t, err)
		require.Equal(t, string(f.Data), string(content))
	}
	s, err := newSet(p)
	require.NoError(t, err)
	requireSet(t, filepath.Join(dir, current), s)
}

// steps returns how many calls change the world when newPayload is written after start.
func steps(t *testing.T, start func(*testing.T, string), o Options) int {
	t.Helper()
	dir, n := t.TempDir(), 0
	start(t, dir)
	w := newWriter(t, dir, o)
	w.before = func(string, string) error { n++; return nil }
	mustWrite(t, w, newPayload)
	return n
}

// TestCrashAtEveryStep lets nothing happen from the nth call on, as if the process were gone then. Whatever is written
// next finds its way.
func TestCrashAtEveryStep(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			for n := range steps(t, start, Options{}) {
				dir, at := t.TempDir(), 0
				start(t, dir)
				w := newWriter(t, dir, Options{})
				w.before = func(string, string) error {
					if at++; at > n {
						return errStopped
					}
					return nil
				}
				_, err := w.Write(t.Context(), newPayload)
				require.ErrorIs(t, err, errStopped)
				requireOldOrNew(t, dir)
				mustWrite(t, newWriter(t, dir, Options{}), []payload{newPayload, oldPayload, {}}[n%3])
			}
		})
	}
}

// TestFailureAtEveryStep lets one call fail. Before the set is published nothing of it may stay.
func TestFailureAtEveryStep(t *testing.T) {
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			o := Options{Sync: name == "the old set"}
			for n := range steps(t, start, o) {
				dir, at := t.TempDir(), 0
				start(t, dir)
				w := newWriter(t, dir, o)
				failed := ""
				w.before = func(call, name string) error {
					if at++; at == n+1 {
						failed = call + " " + name
						return fmt.Errorf("%w: %w", errStopped, unix.EIO)
					}
					return nil
				}
				old, there := published(dir), ownNames(t, dir)
				before := descriptors(t)
				result, err := w.Write(t.Context(), newPayload)
				require.ErrorIs(t, err, unix.EIO, failed)
				require.Equal(t, before, descriptors(t), failed)
				requireOldOrNew(t, dir)
				require.Equal(t, result.Dir, published(dir), failed)
				require.Equal(t, result.Published, result.Dir != old, failed)
				if !result.Published && !outcome.IsUncertain(err) {
					for _, own := range ownNames(t, dir) {
						require.Contains(t, there, own, "left by a failure of: %s", failed)
					}
				}
				mustWrite(t, newWriter(t, dir, Options{}), newPayload)
			}
		})
	}
}

// The environment of a process that is to be killed.
const (
	envKillDir = "VOLUMEKIT_ATOMICWRITER_DIR"
	envKillAt  = "VOLUMEKIT_ATOMICWRITER_STEP"
)

// TestKilledAtEveryStep kills a process before each call that changes the world.
func TestKilledAtEveryStep(t *testing.T) {
	if dir := os.Getenv(envKillDir); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	start := starts["the old set and leftovers"]
	n := steps(t, start, Options{})
	for at := 1; at <= n; at++ {
		dir := t.TempDir()
		start(t, dir)
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKilledAtEveryStep$")
		cmd.Env = append(os.Environ(), envKillDir+"="+dir, envKillAt+"="+strconv.Itoa(at))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		status, ok := exit.Sys().(syscall.WaitStatus)
		require.True(t, ok)
		require.Equal(t, syscall.SIGKILL, status.Signal(), "%s", out)
		requireOldOrNew(t, dir)
		mustWrite(t, newWriter(t, dir, Options{}), newPayload)
	}
}

func writeUntilKilled(t *testing.T, dir string) {
	t.Helper()
	step, err := strconv.Atoi(os.Getenv(envKillAt))
	require.NoError(t, err)
	w := newWriter(t, dir, Options{})
	w.before = func(string, string) error {
		if step--; step == 0 {
			require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
			select {}
		}
		return nil
	}
	_, err = w.Write(t.Context(), newPayload)
	require.NoError(t, err)
}

func TestTooManyOpenFilesLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, oldPayload)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	for more := range uint64(12) {
		few := limit
		few.Cur = lowestFree(t) + more
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		_, err := w.Write(t.Context(), newPayload)
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		if err == nil {
			requireShows(t, dir, newPayload)
			assert.Positive(t, more)
			return
		}
		require.ErrorIs(t, err, unix.EMFILE)
		require.False(t, outcome.IsUncertain(err))
		requireShows(t, dir, oldPayload)
	}
	t.Fatal("twelve descriptors are not enough")
}

// lowestFree returns the descriptor that the next open returns, with none free below.
func lowestFree(t *testing.T) uint64 {
	t.Helper()
	for {
		f, err := os.Open("/dev/null")
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		if fd := uint64(f.Fd()); fd >= uint64(descriptors(t)-2) {
			return fd + 1
		}
	}
}

func TestFullDisk(t *testing.T) {
	for name, options := range map[string]string{"bytes": "size=%dk", "inodes": "nr_inodes=%d"} {
		t.Run(name, func(t *testing.T) {
			failed := 0
			for room := 24; room < 64; room += 4 {
				dir := mountTmpfs(t, fmt.Sprintf(options, room))
				w := newWriter(t, dir, Options{})
				old := payload{"a": {Data: make([]byte, 8000), Mode: 0o600}, "d/e/f": {Mode: 0o600}}
				mustWrite(t, w, old)
				big := payload{"d/e/f": {Mode: 0o600}}
				for i := range 16 {
					big[fmt.Sprintf("f/%d", i)] = FileProjection{Data: make([]byte, 2000), Mode: 0o600}
				}
				if _, err := w.Write(t.Context(), big); err != nil {
					failed++
					require.ErrorIs(t, err, unix.ENOSPC)
					require.False(t, outcome.IsUncertain(err))
					requireShows(t, dir, old)
				} else {
					requireShows(t, dir, big)
				}
				mustWrite(t, w, old)
			}
			assert.Positive(t, failed)
		})
	}
}

// TestLeftoversMakeRoomFirst: what a crash has left must not be what the disk is full of.
func TestLeftoversMakeRoomFirst(t *testing.T) {
	dir := mountTmpfs(t, "size=64k")
	leftover := filepath.Join(dir, "..2020_01_01_00_00_00.1")
	require.NoError(t, os.Mkdir(leftover, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(leftover, "f"), make([]byte, 48<<10), 0o600))
	mustWrite(t, newWriter(t, dir, Options{}), payload{"a": {Data: make([]byte, 40<<10)}})
}

func TestReadOnlyFilesystem(t *testing.T) {
	dir := mountTmpfs(t, "")
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, oldPayload)
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	assert.False(t, mustWrite(t, w, oldPayload).Published, "what is there already needs no writing")
	_, err := w.Write(t.Context(), newPayload)
	require.ErrorIs(t, err, unix.EROFS)
	assert.False(t, outcome.IsUncertain(err))
	requireShows(t, dir, oldPayload)
}
