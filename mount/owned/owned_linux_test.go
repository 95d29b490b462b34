package owned_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
)

// made returns a directory that was made, and recorded.
func made(t *testing.T) owned.Directory {
	t.Helper()
	top := t.TempDir()
	d := owned.Directory{Path: filepath.Join(top, "volumes/a"), Proof: filepath.Join(top, "proofs/a")}
	require.NoError(t, os.MkdirAll(d.Path, 0o700))
	record(t, d)
	return d
}

func record(t *testing.T, d owned.Directory) {
	t.Helper()
	dir, err := os.Open(d.Path)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, d.Record(t.Context(), dir, safepath.Options{}))
}

func open(t *testing.T, d owned.Directory) error {
	t.Helper()
	root, err := d.Open(t.Context(), safepath.Options{})
	if err == nil {
		require.NoError(t, root.Close())
	}
	return err
}

func TestDirectoryIsOpenedThatWasRecorded(t *testing.T) {
	d := made(t)
	require.NoError(t, open(t, d))
	require.NoError(t, os.Rename(d.Path, d.Path+"-moved"))
	require.ErrorIs(t, open(t, d), fs.ErrNotExist)
	require.NoError(t, os.Mkdir(d.Path, 0o700))
	require.ErrorIs(t, open(t, d), owned.ErrUnproven, "it is another")
	record(t, d)
	require.NoError(t, open(t, d), "a new proof takes the place of the old one")

	require.NoError(t, d.Forget(t.Context(), safepath.Options{}))
	require.NoError(t, d.Forget(t.Context(), safepath.Options{}))
	require.ErrorIs(t, open(t, d), owned.ErrUnproven, "there is no proof")
	recorded, err := d.IsRecorded(t.Context(), safepath.Options{})
	require.NoError(t, err)
	assert.False(t, recorded)
}

func TestProofThatCannotBeReadProvesNothing(t *testing.T) {
	d := made(t)
	for _, target := range []string{"elsewhere", "made:1:2:3.", "made:1:2:3.4x"} {
		require.NoError(t, os.Remove(d.Proof))
		require.NoError(t, os.Symlink(target, d.Proof))
		require.ErrorIs(t, open(t, d), owned.ErrUnproven, target)
	}
	require.NoError(t, os.Remove(d.Proof))
	require.NoError(t, os.WriteFile(d.Proof, nil, 0o600))
	require.ErrorIs(t, open(t, d), owned.ErrUnproven)
	_, err := d.IsRecorded(t.Context(), safepath.Options{})
	require.ErrorIs(t, err, owned.ErrUnproven)
}

func TestProofsGoWithTheirDirectories(t *testing.T) {
	d := made(t)
	proofs, volumes := filepath.Dir(d.Proof), filepath.Dir(d.Path)
	foreign := filepath.Join(proofs, "foreign")
	require.NoError(t, os.Symlink("/elsewhere", foreign))
	require.NoError(t, owned.ForgetBelow(volumes, proofs))
	require.NoError(t, open(t, d), "the directories are there")

	require.NoError(t, os.RemoveAll(volumes))
	require.NoError(t, owned.ForgetBelow(volumes, proofs))
	assert.NoFileExists(t, d.Proof)
	_, err := os.Lstat(foreign)
	require.NoError(t, err, "it is no proof")
	require.NoError(t, os.RemoveAll(proofs))
	require.NoError(t, owned.ForgetBelow(volumes, proofs))
}

func TestDirectoryThatAMountHidesIsNotGone(t *testing.T) {
	mounttest.RequireMounts(t)
	d := made(t)
	volumes := filepath.Dir(d.Path)
	require.NoError(t, unix.Mount("foreign", volumes, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(volumes, unix.MNT_DETACH) })
	require.ErrorIs(t, open(t, d), owned.ErrUnproven)
	require.NoError(t, os.Mkdir(d.Path, 0o700))
	require.ErrorIs(t, open(t, d), owned.ErrUnproven)

	dir, err := os.Open(d.Path)
	require.NoError(t, err)
	require.ErrorIs(t, d.Record(t.Context(), dir, safepath.Options{}), owned.ErrUnproven, "it would be the end of the other's proof")
	require.NoError(t, dir.Close())
	require.NoError(t, unix.Unmount(volumes, 0))
	require.NoError(t, open(t, d))
}

func TestWhatWasSeenIsComparedWithWhatIsThere(t *testing.T) {
	mounttest.RequireMounts(t)
	d := made(t)
	volumes := filepath.Dir(d.Path)
	seen, err := owned.See(t.Context(), d.Path, safepath.Options{})
	require.NoError(t, err)
	require.NoError(t, seen.Check(t.Context(), d.Path, safepath.Options{}))

	require.NoError(t, unix.Mount("foreign", volumes, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(volumes, unix.MNT_DETACH) })
	require.ErrorIs(t, seen.Check(t.Context(), d.Path, safepath.Options{}), owned.ErrUnproven)
	require.NoError(t, os.Mkdir(d.Path, 0o700))
	require.ErrorIs(t, seen.Check(t.Context(), d.Path, safepath.Options{}), owned.ErrUnproven)
	require.NoError(t, unix.Unmount(volumes, 0))

	require.NoError(t, unix.Mount(volumes, volumes, "", unix.MS_BIND, ""))
	require.ErrorIs(t, seen.Check(t.Context(), d.Path, safepath.Options{}), owned.ErrUnproven, "a copy may have the same identity")
	require.NoError(t, unix.Unmount(volumes, 0))
	require.NoError(t, seen.Check(t.Context(), d.Path, safepath.Options{}))
	require.NoError(t, os.Remove(d.Path))
	err = seen.Check(t.Context(), d.Path, safepath.Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NotErrorIs(t, err, owned.ErrUnproven)
}
