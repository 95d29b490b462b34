package format_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
)

// killed is a store of a program that is killed before it can forget what it keeps under a name.
type killed struct {
	format.RecoveryStore
	name string
}

func (k killed) Save(ctx context.Context, name string, data []byte) error {
	if data == nil && name == k.name {
		return context.Canceled
	}
	return k.RecoveryStore.Save(ctx, name, data)
}

// breakAt writes into the superblock of an ext4, so that its checksum is another's.
func breakAt(t *testing.T, path string, offset int64) {
	t.Helper()
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer image.Close()
	_, err = image.WriteAt([]byte("torn"), 1024+offset)
	require.NoError(t, err)
}

// breakExpansion removes the inode of the blocks that are reserved for an expansion, which a check does not dare to repair.
func breakExpansion(t *testing.T, path string) {
	t.Helper()
	for _, change := range []string{"clri <7>", "set_super_value state 2"} {
		out, err := exec.CommandContext(t.Context(), "debugfs", "-w", "-R", change, path).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

func requireNothingSaved(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// Places in the superblock: how many blocks are free, when it was written and when it was mounted, and its identity.
const superFree, superWritten, superMounted, superIdentity = 0x0c, 0x30, 0x2c, 0x68

func TestACheckThatWasKilledIsBegunAgain(t *testing.T) {
	path := formatted(t, "ext4", 8*mib)
	store := format.Directory{Dir: filepath.Join(t.TempDir(), "kept"), Name: "pv"}
	breakAt(t, path, superWritten)
	_, err := format.CheckRecoverable(t.Context(), path, "ext4", store)
	require.ErrorIs(t, err, format.ErrDamaged, "nothing was kept")
	requireNothingSaved(t, store.Dir)

	for offset, want := range map[int64]error{
		superFree: nil, superWritten: nil,
		superMounted: format.ErrDamaged, superIdentity: format.ErrDamaged, // another program has written there
	} {
		path := formatted(t, "ext4", 8*mib)
		_, err = format.CheckRecoverable(t.Context(), path, "ext4", killed{store, "checking"})
		require.ErrorIs(t, err, context.Canceled)
		breakAt(t, path, offset)
		_, err = format.CheckRecoverable(t.Context(), path, "ext4", store)
		require.ErrorIs(t, err, want, "%x", offset)
		requireNothingSaved(t, store.Dir)
	}
}

// What is kept is written in parts, too, and is of no use when that was broken off.
func TestWhatWasNotKeptWholeIsNotPutBack(t *testing.T) {
	path := formatted(t, "ext4", 8*mib)
	store := format.Directory{Dir: t.TempDir(), Name: "pv"}
	_, err := format.CheckRecoverable(t.Context(), path, "ext4", killed{store, "checking"})
	require.ErrorIs(t, err, context.Canceled)
	breakAt(t, path, superWritten)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	kept, err := store.Load(t.Context(), "checking")
	require.NoError(t, err)
	for size := 0; size < len(kept); size += 7 {
		require.NoError(t, store.Save(t.Context(), "checking", kept[:size]))
		_, err := format.CheckRecoverable(t.Context(), path, "ext4", store)
		require.ErrorIs(t, err, format.ErrDamaged)
	}
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

// A check that is broken off before an expansion begins is begun again, as one without an expansion is.
func TestACheckThatWasKilledBeforeAGrowthIsBegunAgain(t *testing.T) {
	path := formatted(t, "ext4", 32*mib)
	require.NoError(t, os.Truncate(path, 48*mib))
	store := format.Directory{Dir: t.TempDir(), Name: "pv"}
	_, err := format.GrowRecoverable(t.Context(), path, killed{store, "checking"})
	require.ErrorIs(t, err, context.Canceled)
	breakAt(t, path, superWritten)
	_, err = format.CheckRecoverable(t.Context(), path, "ext4", store)
	require.NoError(t, err)
	requireNothingSaved(t, store.Dir)
}

// An expansion that was broken off leaves what a check does not dare to repair.
func TestAGrowthThatWasKilledIsRepaired(t *testing.T) {
	path := formatted(t, "ext4", 32*mib)
	breakExpansion(t, path)
	store := format.Directory{Dir: t.TempDir(), Name: "pv"}
	_, err := format.CheckRecoverable(t.Context(), path, "ext4", store)
	require.ErrorIs(t, err, format.ErrDamaged)

	path = formatted(t, "ext4", 32*mib)
	require.NoError(t, os.Truncate(path, 48*mib))
	_, err = format.GrowRecoverable(t.Context(), path, killed{store, "growing"})
	require.ErrorIs(t, err, context.Canceled)
	breakExpansion(t, path)
	breakAt(t, path, superFree)
	mended, err := format.CheckRecoverable(t.Context(), path, "ext4", store)
	require.NoError(t, err)
	assert.True(t, mended.Repaired)
	checked, err := format.Check(t.Context(), path, "ext4")
	require.NoError(t, err)
	assert.False(t, checked.Repaired)

	require.NoError(t, os.Truncate(path, 64*mib))
	_, err = format.GrowRecoverable(t.Context(), path, store)
	require.NoError(t, err)
	requireNothingSaved(t, store.Dir)
	room, err := format.Measure(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, format.Room{Filesystem: 64 * mib, Device: 64 * mib}, room)
}

// removeExpansionInode removes the inode of the blocks that are reserved for an expansion from a filesystem that says that it is whole.
func removeExpansionInode(t *testing.T, path string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "debugfs", "-w", "-R", "clri <7>", path).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestAGrowthThatWasRefusedLicensesNoRepair(t *testing.T) {
	path := formatted(t, "ext4", 32*mib)
	require.NoError(t, os.Truncate(path, 48*mib))
	removeExpansionInode(t, path)
	store := format.Directory{Dir: t.TempDir(), Name: "pv"}
	_, err := format.GrowRecoverable(t.Context(), path, store)
	require.ErrorIs(t, err, format.ErrDamaged)
	requireNothingSaved(t, store.Dir)

	for range 2 {
		_, err = format.GrowRecoverable(t.Context(), path, store)
		require.ErrorIs(t, err, format.ErrDamaged)
		_, err = format.CheckRecoverable(t.Context(), path, "ext4", store)
		require.ErrorIs(t, err, format.ErrDamaged)
	}
}

// savedGrowth is a filesystem that has grown, and what was kept of it before.
func savedGrowth(t *testing.T) (path string, store format.Directory) {
	t.Helper()
	path = formatted(t, "ext4", 32*mib)
	require.NoError(t, os.Truncate(path, 48*mib))
	store = format.Directory{Dir: t.TempDir(), Name: "pv"}
	_, err := format.GrowRecoverable(t.Context(), path, killed{store, "growing"})
	require.ErrorIs(t, err, context.Canceled)
	return path, store
}

// TestOnlyAGrowthThatHadBegunLicensesARepair: there is a mark, and the proof that resize2fs had begun is missing.
func TestOnlyAGrowthThatHadBegunLicensesARepair(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string, store format.Directory){
		"it has ended": func(t *testing.T, path string, _ format.Directory) { removeExpansionInode(t, path) },
		"it was mounted since": func(t *testing.T, path string, _ format.Directory) {
			breakExpansion(t, path)
			out, err := exec.CommandContext(t.Context(), "debugfs", "-w", "-R", "set_super_value mtime now", path).CombinedOutput()
			require.NoError(t, err, string(out))
		},
		"it is another filesystem": func(t *testing.T, path string, _ format.Directory) {
			require.NoError(t, os.Truncate(path, 0))
			require.NoError(t, os.Truncate(path, 48*mib))
			require.NoError(t, format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"}))
			breakExpansion(t, path)
		},
		"the mark is empty": func(t *testing.T, path string, store format.Directory) {
			breakExpansion(t, path)
			require.NoError(t, store.Save(t.Context(), "growing", []byte{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, store := savedGrowth(t)
			change(t, path, store)
			_, err := format.CheckRecoverable(t.Context(), path, "ext4", store)
			require.ErrorIs(t, err, format.ErrDamaged)
			requireNothingSaved(t, store.Dir)
		})
	}
}

// nowhere is a store where nothing can be kept.
type nowhere struct{}

func (nowhere) Save(context.Context, string, []byte) error   { return mount.ErrUnsupported }
func (nowhere) Load(context.Context, string) ([]byte, error) { return nil, nil }

func TestWhereNothingCanBeKeptAFilesystemIsCheckedAndDoesNotGrow(t *testing.T) {
	path := formatted(t, "ext4", 8*mib)
	require.NoError(t, os.Truncate(path, 16*mib))
	_, err := format.GrowRecoverable(t.Context(), path, nowhere{})
	require.ErrorIs(t, err, mount.ErrUnsupported)
	room, err := format.Measure(t.Context(), path)
	require.NoError(t, err)
	assert.EqualValues(t, 8*mib, room.Filesystem)
}

func TestAttributesOfAnImage(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	defer file.Close()
	const name = "user.volumekit.test"
	require.NoError(t, format.SetAttribute(file, name, nil), "there is none")
	if err := format.SetAttribute(file, name, []byte{}); errors.Is(err, mount.ErrUnsupported) {
		t.Logf("no attributes here: %v", err)
		return
	}
	for _, data := range [][]byte{{}, []byte("kept"), make([]byte, 900)} {
		require.NoError(t, format.SetAttribute(file, name, data))
		kept, err := format.Attribute(file, name)
		require.NoError(t, err)
		assert.Equal(t, data, kept)
	}
	require.NoError(t, format.SetAttribute(file, name, nil))
	kept, err := format.Attribute(file, name)
	require.NoError(t, err)
	assert.Nil(t, kept)
}
