package loopblock_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// leaveFrozen freezes a volume that is staged as a process does that is then killed together with its guard, and returns the record.
func (n *node) leaveFrozen(spec *volume.Spec) string {
	n.t.Helper()
	root, err := os.Open(n.stagingPath(spec))
	require.NoError(n.t, err)
	defer root.Close()
	require.NoError(n.t, unix.IoctlSetInt(int(root.Fd()), 0xc0045877, 0)) // FIFREEZE
	record := filepath.Join(n.images, spec.Name()+".frozen")
	write(n.t, record, "")
	return record
}

// assertNotFrozen thaws what is at a path, so that no test waits for ever.
func assertNotFrozen(t *testing.T, path string) {
	t.Helper()
	root, err := os.Open(path)
	require.NoError(t, err)
	defer root.Close()
	was, err := freeze.ThawLeft(root)
	require.NoError(t, err)
	assert.False(t, was, "it was frozen")
}

// A frozen filesystem outlives its last mount.
func TestWhatWasLeftFrozenAndUnmountedIsThawedWhenItIsStaged(t *testing.T) {
	for name, again := range map[string]func(n *node, spec *volume.Spec, device string){
		"by its mount": func(n *node, spec *volume.Spec, device string) {
			require.NoError(n.t, n.tryStage(spec, device))
		},
		"where it is mounted": func(n *node, spec *volume.Spec, device string) {
			require.NoError(n.t, unix.Mount(device, n.stagingPath(spec), "ext4", 0, ""))
			require.NoError(n.t, n.tryStage(spec, device))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			spec := n.withFile("source")
			n.stage(spec)
			device := n.attach(spec)
			record := n.leaveFrozen(spec)
			require.NoError(t, unix.Unmount(n.stagingPath(spec), 0))
			n.plugin = n.pluginOver(n.mounter)
			assert.FileExists(t, record, "it is frozen")
			again(n, spec, device)
			assertNotFrozen(t, n.stagingPath(spec))
			assert.NoFileExists(t, record)
			n.release(spec)
		})
	}
}

func TestTheRecordOfAVolumeThatIsDetachedIsRemoved(t *testing.T) {
	n := newNode(t)
	spec := n.withFile("source")
	record := filepath.Join(n.images, "source.frozen")
	write(t, record, "")
	n.plugin = n.pluginOver(n.mounter)
	assert.NoFileExists(t, record)
	n.requireFile(spec, "of both")
}

// covering covers a path with a tmpfs, except while it is looked up.
type covering struct {
	mount.Interface
	t    *testing.T
	path string
	on   bool
}

func (c *covering) cover() {
	assert.NoError(c.t, unix.Mount("tmpfs", c.path, "tmpfs", 0, ""))
	c.on = true
}

func (c *covering) uncover() {
	if c.on {
		assert.NoError(c.t, unix.Unmount(c.path, unix.MNT_DETACH))
	}
	c.on = false
}

func (c *covering) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	if path != c.path {
		return c.Interface.Lookup(ctx, path)
	}
	c.uncover()
	defer c.cover()
	return c.Interface.Lookup(ctx, path)
}

// withoutUnique is a mounter of a kernel that has no unique ids of mounts.
type withoutUnique struct{ mount.Interface }

func (m withoutUnique) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	there, err := m.Interface.Lookup(ctx, path)
	there.UniqueID = 0
	return there, err
}

func TestOnlyTheRootOfTheVolumesMountIsFrozenOrThawed(t *testing.T) {
	n := newNode(t)
	for name, mounter := range map[string]mount.Interface{"unique": n.mounter, "id": withoutUnique{n.mounter}} {
		t.Run(name, func(t *testing.T) {
			spec := n.withFile(name)
			n.stage(spec)
			covered := &covering{Interface: mounter, t: t, path: n.stagingPath(spec)}
			n.plugin = n.pluginOver(covered)
			_, err := n.trySnapshot(t.Context(), "s", spec)
			covered.uncover()
			require.ErrorIs(t, err, volume.ErrTransient)
			require.NotErrorIs(t, err, volume.ErrUnsupported, "the tmpfs was to be frozen")

			record := n.leaveFrozen(spec)
			n.plugin = n.pluginOver(covered)
			covered.uncover()
			assert.FileExists(t, record, "it is frozen")
			n.plugin = n.pluginOver(mounter)
			assertNotFrozen(t, n.stagingPath(spec))
			assert.NoFileExists(t, record)
			n.snapshot("s-"+name, spec)
			n.release(spec)
		})
	}
}

// A copy carries no attributes of the image, so that nothing could make it whole.
func TestAnImageWhoseGrowthWasBrokenOffIsNotCopied(t *testing.T) {
	n := newNode(t)
	spec := n.withFile("source")
	for _, name := range []string{"growing", "mending", "checking"} {
		attribute := "user.volumekit." + name
		require.NoError(t, unix.Setxattr(n.image("source"), attribute, []byte("kept"), 0))
		_, err := n.trySnapshot(t.Context(), "s", spec)
		require.ErrorIs(t, err, volume.ErrTransient, name)
		_, err = n.tryProvision(t.Context(), copyOf(spec, "copy", "32Mi"))
		require.ErrorIs(t, err, volume.ErrTransient, name)
		require.NoError(t, unix.Removexattr(n.image("source"), attribute))
	}
	assert.Equal(t, []string{"source.img"}, n.names())

	var kept recorder
	_, err := format.CheckRecoverable(t.Context(), n.image("source"), "ext4", &kept)
	require.NoError(t, err)
	require.NoError(t, unix.Setxattr(n.image("source"), "user.volumekit.checking", kept.data, 0))
	n.requireFile(spec, "of both") // stages it once
	n.requireFile(n.restore(n.snapshot("s", spec), spec, "restored", "32Mi"), "of both")
}

// hook is a log whose lines call a function.
type hook struct {
	slog.Handler
	do func(slog.Record)
}

func (*hook) Enabled(context.Context, slog.Level) bool        { return true }
func (h *hook) Handle(_ context.Context, r slog.Record) error { h.do(r); return nil }
func (h *hook) WithAttrs([]slog.Attr) slog.Handler            { return h }

func TestAGroupIsThawedBeforeAnythingElse(t *testing.T) {
	n := newNode(t)
	sources := []*volume.Spec{n.withFile("one"), n.withFile("two")}
	for _, spec := range sources {
		n.stage(spec)
	}
	told := 0
	log := &hook{do: func(r slog.Record) {
		if r.Message != "the volume was frozen" {
			return
		}
		told++
		for _, spec := range sources {
			assertNotFrozen(t, n.stagingPath(spec))
		}
	}}
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, FreezeLimit: time.Hour, Logger: slog.New(log)})
	_, err := n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: sources})
	require.NoError(t, err)
	assert.Equal(t, 2, told)
	for _, spec := range sources {
		n.release(spec)
	}
}

// A volume without a writer is copied after the frozen ones are thawed.
func TestAVolumeWithoutAWriterIsNotCopiedUnderTheFreeze(t *testing.T) {
	n := newNode(t)
	detached, staged := n.withFile("detached"), n.withFile("staged")
	if shares(t, n.images) {
		t.Skip("missing: a temporary directory whose filesystem does not share blocks")
	}
	n.stage(staged)
	var copied []string
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, FreezeLimit: time.Hour, Progress: func(p loopblock.CopyProgress) {
		if !slices.Contains(copied, p.Source) {
			copied = append(copied, p.Source)
		}
		if p.Source == "detached" {
			assertNotFrozen(t, n.stagingPath(staged))
		}
	}})
	_, err := n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: []*volume.Spec{detached, staged}})
	require.NoError(t, err)
	assert.Equal(t, []string{"staged", "detached"}, copied)
	n.release(staged)
}

// That one snapshot is being made says nothing about the records of others.
func TestARecordThatCannotBeReadIsToldOf(t *testing.T) {
	n := newNode(t)
	n.withFile("source")
	dir, err := image.OpenDir(n.images)
	require.NoError(t, err)
	defer dir.Close()
	busy, err := dir.Begin("busy.frozen")
	require.NoError(t, err)
	defer busy.Close()
	var log bytes.Buffer
	init := func() {
		n.pluginWith(loopblock.Options{Mounter: n.mounter, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	}
	init()
	assert.Empty(t, log.String(), "a snapshot is being made")
	require.NoError(t, os.Mkdir(filepath.Join(n.images, "wrong.frozen"), 0o700))
	init()
	assert.Contains(t, log.String(), "wrong.frozen")
	assert.NotContains(t, log.String(), "busy.frozen")
}

func TestDeleteOfOneSnapshotOfAGroup(t *testing.T) {
	n := newNode(t)
	spec := n.withFile("source")
	n.snapshot("s", spec)
	_, err := n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: []*volume.Spec{spec}})
	require.NoError(t, err)
	require.ErrorIs(t, n.plugin.DeleteSnapshot(t.Context(), "g/0"), volume.ErrInfeasible)
	for _, none := range []string{"g/1", "s/0", "none/0"} {
		require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), none), none)
	}
	write(t, filepath.Join(n.images, "g.snapshot"), "{")
	err = n.plugin.DeleteSnapshot(t.Context(), "g/0")
	require.Error(t, err)
	require.NotErrorIs(t, err, volume.ErrInfeasible, "it is not known what it is")
}
