//go:build linux || darwin

package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWhatIsNoFileIsNoRecord(t *testing.T) {
	d := open(t, private(t), Options{})
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, encode("link", []byte("x")), 0o600))
	at := func(key string) string { return filepath.Join(d.Path(), fileName(key)) }
	require.NoError(t, os.Symlink(outside, at("link")))
	require.NoError(t, os.Symlink(filepath.Join(d.Path(), "nowhere"), at("dangling")))
	require.NoError(t, os.Mkdir(at("dir"), 0o700))
	require.NoError(t, unix.Mkfifo(at("pipe"), 0o600)) // To open it would wait for a writer.
	require.NoError(t, d.Put("good", []byte("x")))
	got, damaged := load(t, d)
	assert.Equal(t, map[string]string{"good": "x"}, got)
	assert.Len(t, damaged, 4)
	assert.FileExists(t, outside)
	for _, key := range []string{"link", "dangling", "dir", "pipe"} {
		require.NoError(t, d.Put(key, []byte("x")), "its place is free")
	}
}
