package usage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

func TestInfoOfUnusualFilesystems(t *testing.T) {
	for name, tc := range map[string]struct {
		st   unix.Statfs_t
		want FSInfo
	}{
		"in units of frsize, not of bsize": {
			unix.Statfs_t{Blocks: 100, Bfree: 60, Bavail: 50, Bsize: 1 << 20, Frsize: 512, Files: 10, Ffree: 4},
			FSInfo{Capacity: 51200, Available: 25600, Used: 20480, Inodes: 10, InodesFree: 4, InodesUsed: 6},
		},
		"a kernel without frsize": {unix.Statfs_t{Blocks: 100, Bfree: 100, Bsize: 4096}, FSInfo{Capacity: 409600}},
		"more free than there is": {
			unix.Statfs_t{Blocks: 1, Bfree: 2, Frsize: 512, Files: 1, Ffree: math.MaxUint64},
			FSInfo{Capacity: 512, Inodes: 1, InodesFree: math.MaxInt64},
		},
		"more than fits": {
			unix.Statfs_t{Blocks: math.MaxUint64, Bavail: 1, Frsize: 4096, Files: math.MaxUint64},
			FSInfo{
				Capacity: math.MaxInt64, Available: 4096, Used: math.MaxInt64, Inodes: math.MaxInt64, InodesUsed: math.MaxInt64,
			},
		},
		"no inodes counted": {
			unix.Statfs_t{Blocks: 8, Bfree: 8, Bavail: 8, Frsize: 512, Ffree: 5}, FSInfo{Capacity: 4096, Available: 4096},
		},
	} {
		assert.Equal(t, tc.want, infoOf(&tc.st), name)
	}
}
