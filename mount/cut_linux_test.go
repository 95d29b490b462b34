package mount_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
)

// cutContext ends after its end was asked for a number of times, so that an operation is cut at one step of its own.
type cutContext struct {
	context.Context //nolint:containedctx // It is one.
	left            atomic.Int64
}

func cutAfter(ctx context.Context, looks int64) *cutContext {
	c := &cutContext{Context: ctx}
	c.left.Store(looks)
	return c
}

func (c *cutContext) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// cutEverywhere does something again and again, cut one step later each time, until it works. After each error that is
// not uncertain, unchanged must hold; back undoes what is there.
func cutEverywhere(t *testing.T, do func(context.Context) error, unchanged, back func()) {
	t.Helper()
	for looks := range int64(200) {
		err := do(cutAfter(t.Context(), looks))
		if err == nil {
			require.Positive(t, looks, "nothing was cut")
			return
		}
		require.ErrorIs(t, err, context.Canceled)
		if !errors.Is(err, mount.ErrUncertain) {
			unchanged()
		}
		back()
	}
	require.Fail(t, "it never worked")
}

func TestMountThatIsCutLeavesNothing(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		source, target := filepath.Join(root, "source"), filepath.Join(root, "a", "b", "target")
		require.NoError(t, os.Mkdir(source, 0o755))
		for _, request := range []mount.Request{
			{Source: source, Target: target, Options: []string{"rbind", "ro"}},
			{Source: "memory", Target: target, FSType: "tmpfs", Options: []string{"ro"}},
		} {
			cutEverywhere(t, func(ctx context.Context) error { return m.Mount(ctx, request) }, func() {
				_, err := os.Lstat(filepath.Join(root, "a"))
				require.ErrorIs(t, err, os.ErrNotExist)
			}, func() {
				require.NoError(t, mount.UnmountPath(t.Context(), m, target, plain))
			})
			require.NoError(t, mount.UnmountPath(t.Context(), m, target, plain))
			require.NoError(t, os.Remove(filepath.Dir(target)))
			require.NoError(t, os.Remove(filepath.Join(root, "a")))
		}
	})
}

func TestRemountThatIsCutSaysSo(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		change := func(ctx context.Context, options ...string) error {
			return m.Mount(ctx, mount.Request{Target: target, Options: append(options, "remount")})
		}
		before := lineOf(t, m, target)
		cutEverywhere(t, func(ctx context.Context) error { return change(ctx, "ro", "nosuid", "size=64k") }, func() {
			assert.Equal(t, before, lineOf(t, m, target))
		}, func() {
			require.NoError(t, change(t.Context(), "rw", "suid", "size=128k"))
			before = lineOf(t, m, target)
		})
	})
}

func TestUnmountThatIsCutSaysSo(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		fill := func() {
			for mountsAt(t, m, target) < 3 {
				mountTmpfs(t, m, target)
			}
		}
		for _, options := range []mount.UnmountOptions{plain, {Force: time.Hour, Lazy: true}} {
			fill()
			cutEverywhere(t, func(ctx context.Context) error { return m.Unmount(ctx, target, options) }, func() {
				assert.Equal(t, 3, mountsAt(t, m, target))
			}, fill)
			assert.Zero(t, mountsAt(t, m, target))
		}
	})
}

func TestUnmountPathThatIsCutSaysSo(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		fill := func() {
			if mountsAt(t, m, target) == 0 {
				mountTmpfs(t, m, target)
			}
		}
		fill()
		do := func(ctx context.Context) error { return mount.UnmountPath(ctx, m, target, plain) }
		cutEverywhere(t, do, func() { assert.Equal(t, 1, mountsAt(t, m, target)) }, fill)
	})
}

// lineOf returns the line of the table for the mount at path.
func lineOf(t *testing.T, m *mount.Mounter, path string) mount.MountPoint {
	t.Helper()
	table, err := m.List(t.Context())
	require.NoError(t, err)
	at := slices.IndexFunc(table, func(mp mount.MountPoint) bool { return mp.Path == path })
	require.GreaterOrEqual(t, at, 0)
	return table[at]
}

func mountsAt(t *testing.T, m *mount.Mounter, path string) (n int) {
	t.Helper()
	table, err := m.List(t.Context())
	require.NoError(t, err)
	for _, mp := range table {
		if mp.Path == path {
			n++
		}
	}
	return n
}
