package format

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func covers(spans []span, offset int64) bool {
	for _, s := range spans {
		if s.start <= offset && offset < s.end {
			return true
		}
	}
	return false
}

func TestPlacesOfASmallDeviceAreAll(t *testing.T) {
	for _, size := range []int64{1, 512, 1 << 20, wholeUpTo} {
		assert.Equal(t, []span{{0, size}}, superblockSpans(size))
	}
	assert.Empty(t, superblockSpans(0))
}

func TestPlacesCoverEveryMark(t *testing.T) {
	for _, size := range []int64{wholeUpTo + 512, 1 << 30, 300<<30 + 512, 5 << 40} {
		spans := superblockSpans(size)
		want := []int64{
			0, 1024, 4096, 64 << 10, 4<<20 + 4096, // heads, btrfs, second head of LUKS2
			size - 1, size - 512, size - 1<<20, // GPT, md, ZFS
			8193 << 10, 3*8192<<10 + 1024, // ext with blocks of 1 KiB: group 1 and 3
			64 << 20, 256 << 30, // btrfs
			1 << 30, 16 << 30, 1 << 40, // ocfs2
			16 * 32768 * 4096, // ext with clusters of 16 blocks
			(size - 1) / (32768 * 4096) * (32768 * 4096), // ext with a copy in the last group
			32768 * 4096, 3 * 32768 * 4096, 27 * 32768 * 4096, 49 * 32768 * 4096, // ext with 4 KiB
		}
		for _, offset := range want {
			if offset < size {
				assert.True(t, covers(spans, offset), "byte %d of %d", offset, size)
			}
		}
	}
}

func TestPlacesOfXFS(t *testing.T) {
	const size = 10 << 30
	for n := range int64(3) {
		exact := (n + 1) * (size / 4)
		assert.True(t, covers(superblockSpans(size), exact), "group %d", n+1)
		assert.True(t, covers(superblockSpans(size), exact-128<<10), "group %d rounded down", n+1)
	}
}

func TestPlacesAreInOrderAndFew(t *testing.T) {
	const size = 16 << 40
	spans := superblockSpans(size)
	total := int64(0)
	for i, s := range spans {
		assert.Less(t, s.start, s.end)
		assert.LessOrEqual(t, s.end, int64(size))
		if i > 0 {
			assert.Greater(t, s.start, spans[i-1].end)
		}
		total += s.end - s.start
	}
	assert.Less(t, total, 128*mib)
}

func TestSparseGroups(t *testing.T) {
	assert.ElementsMatch(t, []int64{1, 3, 5, 7, 9, 25, 27, 49}, sparseGroups(80))
	assert.Equal(t, []int64{1}, sparseGroups(0))
}
