package format_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
)

// copied returns a copy of an image, as it is now.
func (g *growing) copied() *os.File {
	from, err := os.Open(g.image)
	require.NoError(g.t, err)
	defer from.Close()
	to, err := os.Create(filepath.Join(g.t.TempDir(), "copy.img"))
	require.NoError(g.t, err)
	g.t.Cleanup(func() { to.Close() })
	info, err := from.Stat()
	require.NoError(g.t, err)
	require.NoError(g.t, to.Truncate(info.Size()))
	block, zero := make([]byte, mib), make([]byte, mib)
	for offset := int64(0); ; offset += int64(len(block)) {
		n, err := io.ReadFull(from, block)
		if err != nil {
			require.ErrorIs(g.t, err, io.EOF)
			return to
		}
		if !bytes.Equal(block[:n], zero) {
			_, err = to.WriteAt(block[:n], offset)
			require.NoError(g.t, err)
		}
	}
}

// TestARenewedCopyIsMountedBesideItsOriginal copies each filesystem while it is mounted, so that there is a journal to be
// replayed.
func TestARenewedCopyIsMountedBesideItsOriginal(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		size := sizes()[fsType]
		t.Run(fsType, func(t *testing.T) {
			g := newGrowing(t, fsType, size[0])
			g.mount(fsType)
			shared := filepath.Join(g.dir, "file")
			require.NoError(t, os.WriteFile(shared, []byte("of both"), 0o600))
			dir, err := os.Open(g.dir)
			require.NoError(t, err)
			require.NoError(t, unix.Syncfs(int(dir.Fd())))
			require.NoError(t, dir.Close())

			file := g.copied()
			require.NoError(t, format.RenewFile(t.Context(), file))
			second := &growing{t: t, loops: g.loops, dir: t.TempDir()}
			second.device, err = g.loops.Attach(t.Context(), file.Name(), loop.AttachOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, g.loops.Detach(context.WithoutCancel(t.Context()), second.device)) })
			second.mount(fsType)
			t.Cleanup(func() { assert.NoError(t, unix.Unmount(second.dir, 0)) })

			require.NoError(t, os.WriteFile(filepath.Join(second.dir, "file"), []byte("of the copy"), 0o600))
			for path, want := range map[string]string{shared: "of both", filepath.Join(second.dir, "file"): "of the copy"} {
				content, err := os.ReadFile(path)
				require.NoError(t, err)
				assert.Equal(t, want, string(content), path)
			}
		})
	}
}

func TestWhatIsNoFilesystemHasNoIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, make([]byte, mib), 0o600))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	require.ErrorIs(t, format.RenewFile(t.Context(), file), format.ErrUnknownType)
}
