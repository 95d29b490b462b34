package usage

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestQuotaBlock(t *testing.T) {
	assert.EqualValues(t, 28, unsafe.Sizeof(fileAttributes{}), "struct fsxattr")
	assert.EqualValues(t, 72, unsafe.Sizeof(quotaBlock{}), "struct if_dqblk")
	for name, tc := range map[string]struct {
		block quotaBlock
		want  Usage
		ok    bool
	}{
		"known":       {quotaBlock{space: 4096, inodes: 3, valid: 0x3f}, Usage{Bytes: 4096, Inodes: 3, ByQuota: true}, true},
		"nothing yet": {quotaBlock{valid: quotaHasSpace | quotaHasInodes}, Usage{ByQuota: true}, true},
		"no space":    {quotaBlock{space: 4096, inodes: 3, valid: quotaHasInodes}, Usage{}, false},
		"no inodes":   {quotaBlock{space: 4096, inodes: 3, valid: quotaHasSpace}, Usage{}, false},
		"absurd":      {quotaBlock{space: math.MaxUint64, inodes: 3, valid: 0x3f}, Usage{}, false},
	} {
		got, ok := tc.block.usage()
		assert.Equal(t, tc.ok, ok, name)
		assert.Equal(t, tc.want, got, name)
	}
}

// TestWithoutQuotaThereIsAWalk holds that a filesystem that counts no projects, or does not say so, is walked.
func TestWithoutQuotaThereIsAWalk(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/file", 5000)
	fd, err := openAt(unix.AT_FDCWD, root, unix.O_RDONLY)
	require.NoError(t, err)
	defer closeFD(fd)
	if own := projectOf(fd); own.id == 0 {
		_, ok := projectUsage(fd, 4_000_000_001)
		assert.False(t, ok, "a project without files")
	}
	before, m := openDescriptors(t), &Measurer{}
	for range 3 {
		used, err := m.Measure(t.Context(), root)
		require.NoError(t, err)
		assert.Equal(t, expected(t, root), used)
	}
	assert.Equal(t, before, openDescriptors(t))
}
