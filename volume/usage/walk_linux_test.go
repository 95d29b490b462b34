package usage

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
)

// TestCount shows each file to two workers.
func TestCount(t *testing.T) {
	for name, tc := range map[string]struct {
		stat   unix.Statx_t
		counts int64 // how often it counts
		known  int   // how many inodes are remembered
	}{
		"a file":                {unix.Statx_t{Mode: unix.S_IFREG, Nlink: 1, Ino: 7, Blocks: 8}, 2, 0},
		"one that was unlinked": {unix.Statx_t{Mode: unix.S_IFREG, Nlink: 0, Ino: 7, Blocks: 8}, 2, 0},
		"two links":             {unix.Statx_t{Mode: unix.S_IFREG, Nlink: 2, Ino: 7, Blocks: 8}, 1, 1},
		"many links":            {unix.Statx_t{Mode: unix.S_IFLNK, Nlink: 60_000, Ino: 7, Blocks: 8}, 1, 1},
		"a directory":           {unix.Statx_t{Mode: unix.S_IFDIR, Nlink: 5, Ino: 7, Blocks: 8}, 2, 0},
		"on another device":     {unix.Statx_t{Mode: unix.S_IFREG, Nlink: 2, Ino: 7, Blocks: 8, Dev_minor: 3}, 1, 1},
	} {
		links := newLinkSet(0)
		var used Usage
		for range 2 {
			c := counter{links: links}
			c.count(&tc.stat)
			used.Bytes += c.used.Bytes
			used.Inodes += c.used.Inodes
		}
		assert.Equal(t, Usage{Bytes: tc.counts * 4096, Inodes: tc.counts}, used, name)
		known := 0
		for i := range links.shards {
			known += links.shards[i].used + len(links.shards[i].others)
		}
		assert.Equal(t, tc.known, known, name)
	}
}

func TestFirstFailureEndsTheWalk(t *testing.T) {
	var c counter
	for _, err := range []error{fs.ErrPermission, fs.ErrClosed} {
		assert.Equal(t, treewalk.Stop, c.Fail(err))
	}
	assert.Equal(t, fs.ErrPermission, c.failed)
}
