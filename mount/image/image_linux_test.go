package image_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/mounttest"
)

const mib = int64(1) << 20

func newDir(t *testing.T) (*image.Dir, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "above", "images")
	_, err := image.OpenDir(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	dir, err := image.MakeDir(path)
	require.NoError(t, err)
	t.Cleanup(dir.Close)
	return dir, path
}

func newFile(t *testing.T, size int64) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	require.NoError(t, file.Truncate(size))
	return file
}

func statOf(t *testing.T, file *os.File) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(file.Fd()), &st))
	return st
}

func TestOnlyRegularFilesOfTheDirectoryAreOpened(t *testing.T) {
	dir, path := newDir(t)
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(path, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(path, "directory"), 0o700))
	require.NoError(t, unix.Mkfifo(filepath.Join(path, "fifo"), 0o600))
	for _, name := range []string{"link", "directory", "fifo"} {
		_, err := dir.Open(name, os.O_RDONLY)
		require.ErrorIs(t, err, image.ErrNotRegular, name)
	}
	_, err := dir.Open("../../outside", os.O_RDONLY)
	require.Error(t, err)
	_, err = dir.Open("none", os.O_RDONLY)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAnImageIsMadeByOneAndNeverInThePlaceOfAnother(t *testing.T) {
	dir, path := newDir(t)
	partial, err := dir.Begin("1.partial")
	require.NoError(t, err)
	_, err = dir.Begin("1.partial")
	require.ErrorIs(t, err, mount.ErrTransient, "it is being made")
	require.ErrorIs(t, dir.RemoveLeftOver("1.partial"), mount.ErrTransient)
	_, err = partial.WriteString("left over")
	require.NoError(t, err)
	require.NoError(t, partial.Close()) // as by a kill

	anew, err := dir.Begin("1.partial")
	require.NoError(t, err)
	defer anew.Close()
	assert.Zero(t, statOf(t, anew).Size, "what was left over is gone")
	require.NoError(t, os.WriteFile(filepath.Join(path, "1.img"), []byte("another"), 0o600))
	require.ErrorIs(t, dir.Publish("1.partial", "1.img"), fs.ErrExist)
	require.NoError(t, dir.Publish("1.partial", "2.img"))
	there, err := dir.Is("2.img", anew)
	require.NoError(t, err)
	assert.True(t, there)

	require.NoError(t, dir.Remove("1.img", anew), "which is another file")
	assert.FileExists(t, filepath.Join(path, "1.img"))
	require.NoError(t, dir.Remove("2.img", anew))
	assert.NoFileExists(t, filepath.Join(path, "2.img"))
	require.NoError(t, dir.RemoveLeftOver("1.partial"), "there is none")
	_, err = dir.LockLeftOver("1.partial")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestALeftOverIsLockedByOne(t *testing.T) {
	dir, _ := newDir(t)
	file, err := dir.Create("1.partial")
	require.NoError(t, err)
	defer file.Close()
	_, err = dir.Create("1.partial")
	require.ErrorIs(t, err, fs.ErrExist)
	locked, err := dir.LockLeftOver("1.partial")
	require.NoError(t, err)
	_, err = dir.LockLeftOver("1.partial")
	require.ErrorIs(t, err, mount.ErrTransient)
	require.NoError(t, locked.Close())
	locked, err = dir.LockLeftOver("1.partial")
	require.NoError(t, err)
	require.NoError(t, locked.Close())
	names, err := dir.Names()
	require.NoError(t, err)
	assert.Equal(t, []string{"1.partial"}, names)
}

func TestAFileIsExtendedAndNeverMadeShorter(t *testing.T) {
	sparse, whole := newFile(t, 2*mib), newFile(t, 0)
	require.NoError(t, image.Allocate(whole, 2*mib))
	for file, all := range map[*os.File]bool{sparse: false, whole: true} {
		for _, size := range []int64{4 * mib, mib, 4*mib + 100} {
			require.NoError(t, image.Extend(file, size))
		}
		st := statOf(t, file)
		assert.Equal(t, 4*mib+100, st.Size)
		assert.Equal(t, all, st.Blocks*512 >= st.Size)
	}
}

func TestTheSpaceOfAFile(t *testing.T) {
	file := newFile(t, 4*mib)
	space, err := image.SpaceOf(file)
	require.NoError(t, err)
	assert.Equal(t, 4*mib, space.Holes)
	assert.Positive(t, space.Free)
	require.NoError(t, image.Allocate(file, 4*mib))
	space, err = image.SpaceOf(file)
	require.NoError(t, err)
	assert.Zero(t, space.Holes)
}

func TestACopyHasTheDataAndTheHoles(t *testing.T) {
	from, to := newFile(t, 40*mib), newFile(t, 40*mib)
	data := bytes.Repeat([]byte("data"), 1000)
	for _, offset := range []int64{0, 20 * mib, 40*mib - int64(len(data))} {
		_, err := from.WriteAt(data, offset)
		require.NoError(t, err)
	}
	var last int64
	require.NoError(t, image.CopyData(t.Context(), to, from, func(done, size int64) {
		assert.GreaterOrEqual(t, done, last)
		assert.Equal(t, 40*mib, size)
		last = done
	}))
	assert.Equal(t, 40*mib, last)
	one, err := os.ReadFile(from.Name())
	require.NoError(t, err)
	other, err := os.ReadFile(to.Name())
	require.NoError(t, err)
	assert.True(t, bytes.Equal(one, other))
	assert.Less(t, statOf(t, to).Blocks*512, 40*mib)

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more")
	cancel(cause)
	require.ErrorIs(t, image.CopyData(ctx, to, from, func(int64, int64) {}), cause)
}

// Where the filesystem shares blocks is seen in plugins/loopblock, whose tests make such ones.
func TestWhatCannotBeSharedIsUnsupported(t *testing.T) {
	from, to := newFile(t, mib), newFile(t, 0)
	if image.SharesInOneStep(from) {
		require.NoError(t, image.Share(to, from))
		assert.Equal(t, mib, statOf(t, to).Size)
		return
	}
	require.ErrorIs(t, image.Share(to, from), errors.ErrUnsupported)
	assert.Zero(t, statOf(t, to).Size)
}

func TestAnImageOfADeadFilesystemIsLeftBehind(t *testing.T) {
	mounttest.RequireMounts(t)
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"1.img": "content"}})
	use := func(ctx context.Context, name string) (string, error) {
		return image.With(ctx, f.Path(), name, func(file *os.File) (string, error) { return filepath.Base(file.Name()), nil })
	}
	name, err := use(t.Context(), "1.img")
	require.NoError(t, err)
	assert.Equal(t, "1.img", name)
	_, err = use(t.Context(), "2.img")
	require.ErrorIs(t, err, fs.ErrNotExist)

	f.Hang(mounttest.FUSELookup)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { _, err := use(ctx, "1.img"); result <- err }()
	f.Await(mounttest.FUSELookup)
	cancel()
	err = <-result
	var lost *mount.AbandonedError
	require.ErrorAs(t, err, &lost)
	require.ErrorIs(t, err, mount.ErrUncertain)
	f.Heal()
	<-lost.Done()
	_, err = use(ctx, "1.img")
	require.ErrorIs(t, err, mount.ErrTransient, "it was not begun")
}

func TestACopyOfWhatIsCutOffFails(t *testing.T) {
	from, to := newFile(t, 0), newFile(t, 40*mib)
	_, err := from.Write(bytes.Repeat([]byte{1}, int(40*mib)))
	require.NoError(t, err)
	cut := func(int64, int64) { assert.NoError(t, from.Truncate(20*mib)) }
	require.ErrorIs(t, image.CopyData(t.Context(), to, from, cut), io.ErrUnexpectedEOF)
}
