package format_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// envGrower makes this binary the program that is killed: it checks and grows the image that it names.
const envGrower = "VOLUMEKIT_FORMAT_TEST_GROWER"

// growRecoverable is what a plugin does before it mounts an image.
func growRecoverable(ctx context.Context, path string) error {
	store := storeOf(path)
	if _, err := format.CheckRecoverable(ctx, path, "ext4", store); err != nil {
		return err
	}
	_, err := format.GrowRecoverable(ctx, path, store)
	if errors.Is(err, format.ErrNotGrown) {
		return nil // It is mounted as it is.
	}
	return err
}

func storeOf(path string) format.Directory { return format.Directory{Dir: path + ".kept", Name: "pv"} }

// grower is an image with something in it that is to grow, time and again.
type grower struct {
	t    *testing.T
	base string // as it was before
	path string // where a copy of it is
	held []byte
	told strings.Builder // what was done to the copy
}

func newGrower(t *testing.T) *grower {
	t.Helper()
	mounttest.RequireRoot(t)
	requireTool(t, "ext4")
	dir := t.TempDir()
	require.NoError(t, unix.Mount("memory", dir, "tmpfs", 0, "mode=700")) // Every one of these programs waits for the disk.
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	g := &grower{t: t, base: filepath.Join(dir, "base"), path: filepath.Join(dir, "grows"), held: bytes.Repeat([]byte("held\n"), 200_000)}
	out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", g.base, "8M").CombinedOutput()
	require.NoError(t, err, string(out))
	file := filepath.Join(dir, "held")
	require.NoError(t, os.WriteFile(file, g.held, 0o600))
	out, err = exec.CommandContext(t.Context(), "debugfs", "-w", "-R", "write "+file+" held", g.base).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Truncate(g.base, 24*mib))
	return g
}

// begin forgets what was done.
func (g *grower) begin() {
	g.t.Helper()
	g.told.Reset()
	require.NoError(g.t, os.RemoveAll(storeOf(g.path).Dir))
	out, err := exec.CommandContext(g.t.Context(), "cp", "--sparse=always", g.base, g.path).CombinedOutput()
	require.NoError(g.t, err, string(out))
}

// runKilled runs the program, and kills it before a call; 0: never.
func (g *grower) runKilled(call int) faultrun.Result {
	g.t.Helper()
	return g.run(faultrun.Changing, func(c faultrun.Call) faultrun.Verdict {
		if c.N != call {
			return faultrun.Verdict{}
		}
		fmt.Fprintf(&g.told, "killed: call %d, %s: %s\n", c.N, c.Program(), c)
		return faultrun.Kill()
	})
}

// runFailing runs the program. From some call on all those of resize2fs fail, as on a disk that is full, and the program is
// killed before a call of the e2fsck that repairs what is left.
func (g *grower) runFailing(ofResize, ofRepair int) (killed bool) {
	g.t.Helper()
	resizing, repairing, begun := 0, 0, false
	g.run(faultrun.Fallible, func(c faultrun.Call) faultrun.Verdict {
		switch program := c.Program(); {
		case program == "resize2fs":
			resizing++
			if resizing >= ofResize {
				fmt.Fprintf(&g.told, "failed: call %d, %s: %s\n", c.N, program, c)
				return faultrun.Fail(unix.EIO)
			}
		case program == "e2fsck" && begun:
			repairing++
			if repairing == ofRepair {
				killed = true
				fmt.Fprintf(&g.told, "killed: call %d, %s: %s\n", c.N, program, c)
				return faultrun.Kill()
			}
		case c.Number == unix.SYS_OPENAT && strings.Contains(c.String(), `.mending"`):
			begun = true
		}
		return faultrun.Verdict{}
	})
	return killed
}

func (g *grower) run(calls faultrun.Calls, judge faultrun.Judge) faultrun.Result {
	g.t.Helper()
	var told bytes.Buffer
	run, err := faultrun.Start(g.t.Context(), faultrun.Program{
		Path: "/proc/self/exe", Env: append(os.Environ(), envGrower+"="+g.path, "GORACE=atexit_sleep_ms=0"),
		Stdout: &told, Stderr: &told, Calls: calls, Judge: judge,
	})
	requireFilter(g.t, err, &told)
	result, err := run.Wait()
	require.NoError(g.t, err)
	g.told.Write(told.Bytes())
	return result
}

// requireFilter skips where the kernel has no such filters.
func requireFilter(t *testing.T, err error, stderr fmt.Stringer) {
	t.Helper()
	if err != nil && (errors.Is(err, errors.ErrUnsupported) || strings.Contains(stderr.String(), "seccomp filter")) && os.Getenv("CI") != "true" {
		t.Skip("missing: a seccomp filter with a listener: " + stderr.String())
	}
	require.NoError(t, err, stderr)
}

// end runs the program undisturbed: the filesystem is whole then and has grown, and nothing is kept any more.
func (g *grower) end() (ok bool) {
	g.t.Helper()
	result := g.runKilled(0)
	ok = assert.True(g.t, result.State.Success(), "it is repaired")
	out, err := exec.CommandContext(g.t.Context(), "e2fsck", "-f", "-n", g.path).CombinedOutput()
	ok = assert.NoError(g.t, err, string(out)) && ok
	held, err := exec.CommandContext(g.t.Context(), "debugfs", "-R", "cat held", g.path).Output()
	ok = assert.NoError(g.t, err) && assert.True(g.t, bytes.Equal(g.held, held), "what it holds") && ok
	room, err := format.Measure(g.t.Context(), g.path)
	ok = assert.NoError(g.t, err) && assert.Equal(g.t, format.Room{Filesystem: 24 * mib, Device: 24 * mib}, room) && ok
	requireNothingSaved(g.t, storeOf(g.path).Dir)
	if !ok {
		g.t.Log(g.told.String())
	}
	return ok
}

// A program that checks, repairs and grows a filesystem is killed, and so are those that are started next, each before a call
// of its own, or of e2fsck or resize2fs.
func TestAGrowthMayBeKilledTimeAndAgain(t *testing.T) {
	g := newGrower(t)
	g.begin()
	calls := g.runKilled(0).Calls
	require.True(t, g.end())
	const lives, kills, last = 40, 4, 12
	chance := rand.New(rand.NewPCG(41, 0))
	for life := range lives {
		first := 1 + life*calls/lives
		if life%2 == 0 {
			first = calls - life/2%last // resize2fs writes the superblock, which e2fsck finds broken
		}
		g.begin()
		g.runKilled(first)
		for range 1 + chance.IntN(kills) {
			g.runKilled(1 + chance.IntN(2*calls))
		}
		if !g.end() {
			return
		}
	}
}

// resize2fs fails, the program that repairs what that has left is killed, and so is the one that is started next.
func TestAGrowthMayFailAndBeKilledTimeAndAgain(t *testing.T) {
	g := newGrower(t)
	const lives, calls = 32, 90
	repairs := 0
	chance := rand.New(rand.NewPCG(41, 1))
	for life := range lives {
		g.begin()
		if g.runFailing(1+life*calls/lives, 1+chance.IntN(calls)) {
			repairs++
			g.runKilled(1 + chance.IntN(calls))
		}
		if !g.end() {
			return
		}
	}
	assert.Greater(t, repairs, lives/3, "repairs that were really killed")
}

// A repair that has begun is repeated until the filesystem was mounted.
func TestARepairThatHasBegunLicensesNoOther(t *testing.T) {
	for name, change := range map[string]func(path string, store format.RecoveryStore) error{
		"it was mounted since": func(path string, _ format.RecoveryStore) error {
			return exec.CommandContext(t.Context(), "debugfs", "-w", "-R", "set_super_value mtime now", path).Run()
		},
		"it is that of another expansion": func(_ string, store format.RecoveryStore) error {
			return store.Save(t.Context(), "mending", []byte("another"))
		},
		"what it is of was not kept whole": func(_ string, store format.RecoveryStore) error {
			return store.Save(t.Context(), "growing", []byte{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, store := savedGrowth(t)
			breakExpansion(t, path)
			_, err := format.CheckRecoverable(t.Context(), path, "ext4", killed{store, "mending"})
			require.ErrorIs(t, err, context.Canceled, "it is repaired")
			removeExpansionInode(t, path) // e2fsck has taken the mark off, and has not written that yet
			require.NoError(t, change(path, store))
			_, err = format.CheckRecoverable(t.Context(), path, "ext4", store)
			require.ErrorIs(t, err, format.ErrDamaged)
			requireNothingSaved(t, store.Dir)
		})
	}
	path, store := savedGrowth(t)
	breakExpansion(t, path)
	_, err := format.CheckRecoverable(t.Context(), path, "ext4", killed{store, "mending"})
	require.ErrorIs(t, err, context.Canceled)
	removeExpansionInode(t, path)
	checked, err := format.CheckRecoverable(t.Context(), path, "ext4", store)
	require.NoError(t, err)
	assert.True(t, checked.Repaired)
	requireNothingSaved(t, store.Dir)
}

// full is a store that has no room for one name.
type full struct {
	format.RecoveryStore
	name string
}

func (f full) Save(ctx context.Context, name string, data []byte) error {
	if name == f.name && data != nil {
		return unix.ENOSPC
	}
	return f.RecoveryStore.Save(ctx, name, data)
}

// A repair for which there is proof is made where that cannot be put on record.
func TestAGrowthIsRepairedWhereNothingMoreCanBeKept(t *testing.T) {
	path, store := savedGrowth(t)
	breakExpansion(t, path)
	checked, err := format.CheckRecoverable(t.Context(), path, "ext4", full{store, "mending"})
	require.NoError(t, err)
	assert.True(t, checked.Repaired)
	requireNothingSaved(t, store.Dir)
	_, err = format.GrowRecoverable(t.Context(), path, full{store, "growing"})
	require.NoError(t, err, "it has grown")
	assert.NotErrorIs(t, err, mount.ErrUnsupported)
}
