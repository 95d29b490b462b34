package format_test

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestNothingTooSmallForAFilesystemIsBlank(t *testing.T) {
	requireTool(t, "xfs")
	for _, c := range []struct {
		size   int64
		fsType string
	}{{0, "ext4"}, {mib, "ext4"}, {64 * mib, "xfs"}} {
		path := image(t, c.size)
		err := format.Make(t.Context(), path, format.MakeOptions{FSType: c.fsType})
		var small *format.TooSmallError
		require.ErrorAs(t, err, &small)
		require.ErrorIs(t, err, format.ErrTooSmall)
		assert.Equal(t, format.TooSmallError{Path: path, Size: c.size, Least: format.SizesOf(c.fsType).Least}, *small)
	}
	require.ErrorIs(t, format.ProveBlank(t.Context(), image(t, 0)), format.ErrTooSmall)
	require.ErrorIs(t, format.ProveBlank(t.Context(), image(t, mib)), format.ErrTooSmall)
}

// TestADeviceThatIsNotReadyIsNotFormatted: it has no size at first, and then its data.
func TestADeviceThatIsNotReadyIsNotFormatted(t *testing.T) {
	mounttest.RequireRoot(t)
	path := image(t, 0)
	disk := device(t, path)
	require.ErrorIs(t, format.ProveBlank(t.Context(), disk), format.ErrTooSmall)
	require.ErrorIs(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext4"}), format.ErrTooSmall)

	require.NoError(t, os.Truncate(path, 64*mib))
	writeAt(t, path, 20*mib, []byte("kept"))
	_, err := loop.New(loop.Options{}).Resize(t.Context(), path)
	require.NoError(t, err)
	require.ErrorIs(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext4"}), format.ErrNotBlank)
}

func TestADeviceInExclusiveUseIsNotFormatted(t *testing.T) {
	mounttest.RequireRoot(t)
	disk := device(t, image(t, 64*mib))
	holder, err := os.OpenFile(disk, os.O_RDWR|unix.O_EXCL, 0)
	require.NoError(t, err)
	defer holder.Close()
	err = format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext4"})
	require.ErrorIs(t, err, format.ErrInUse)
	require.ErrorIs(t, err, unix.EBUSY)
	require.NoError(t, format.ProveBlank(t.Context(), disk))
}

// rival is a program that opens a device with O_EXCL, as a mount or mkfs does, and writes to it.
type rival struct {
	path string
	// after is how often it gets the device before it writes.
	after int
}

// write reports whether it has written: it does not when a filesystem was made first.
func (r rival) write(ctx context.Context) (bool, error) {
	for n := 0; ctx.Err() == nil; n++ {
		file, err := os.OpenFile(r.path, os.O_RDWR|unix.O_EXCL, 0)
		if errors.Is(err, unix.EBUSY) {
			continue
		}
		if err != nil {
			return false, err
		}
		wrote, done, err := r.try(file, n)
		if err := errors.Join(err, file.Close()); err != nil || done {
			return wrote, err
		}
	}
	return false, nil
}

func (r rival) try(file *os.File, n int) (wrote, done bool, err error) {
	if n < r.after {
		return false, false, nil
	}
	found, err := format.ProbeFile(context.Background(), file)
	if err != nil || found.Type != "" {
		return false, true, err
	}
	_, err = file.WriteAt([]byte("rival"), 0)
	return true, true, errors.Join(err, file.Sync())
}

func TestNoProcessWritesBetweenTheProofAndTheFilesystem(t *testing.T) {
	mounttest.RequireRoot(t)
	requireTool(t, "ext4")
	const rounds = 16
	for round := range rounds {
		disk := device(t, image(t, 64*mib))
		ctx, cancel := context.WithCancel(t.Context())
		type result struct {
			wrote bool
			err   error
		}
		results := make(chan result)
		go func() {
			wrote, err := rival{path: disk, after: round * 128}.write(ctx)
			results <- result{wrote, err}
		}()
		made := format.Make(t.Context(), disk, format.MakeOptions{FSType: "ext4"})
		cancel()
		other := <-results
		require.NoError(t, other.err)
		if !other.wrote {
			continue
		}
		require.Error(t, made, "round %d: what the other has written is overwritten", round)
		content := make([]byte, 5)
		file, err := os.Open(disk)
		require.NoError(t, err)
		_, err = io.ReadFull(file, content)
		require.NoError(t, errors.Join(err, file.Close()))
		assert.Equal(t, "rival", string(content), "round %d", round)
	}
}

// TestFilesystemsAreMadeOnADeviceThatIsHeld: each tool wants the device alone, and it is mounted at once afterwards.
func TestFilesystemsAreMadeOnADeviceThatIsHeld(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			requireTool(t, fsType)
			disk := device(t, image(t, 320*mib))
			require.NoError(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: fsType, Label: "held"}))
			found, err := format.Probe(t.Context(), disk)
			require.NoError(t, err)
			assert.Equal(t, fsType, found.Type)
			dir := t.TempDir()
			require.NoError(t, unix.Mount(disk, dir, fsType, 0, ""))
			require.NoError(t, os.WriteFile(dir+"/file", []byte("content"), 0o600))
			require.NoError(t, unix.Unmount(dir, 0))
		})
	}
}
