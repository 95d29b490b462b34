package usage

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCandidate(t *testing.T) {
	for name, tc := range map[string]struct {
		root, above project
		want        bool
	}{
		"no project":                       {project{}, project{}, false},
		"no project, below one":            {project{}, project{id: 7, inherits: true}, false},
		"inherits nothing":                 {project{id: 7}, project{}, false},
		"a project of its own":             {project{id: 7, inherits: true}, project{}, true},
		"another than above":               {project{id: 7, inherits: true}, project{id: 8, inherits: true}, true},
		"the same as above":                {project{id: 7, inherits: true}, project{id: 7, inherits: true}, false},
		"the same, which is not handed on": {project{id: 7, inherits: true}, project{id: 7}, false},
	} {
		assert.Equal(t, tc.want, candidate(tc.root, tc.above), name)
	}
}

func TestConfirmed(t *testing.T) {
	quota := func(bytes, inodes int64) Usage { return Usage{Bytes: bytes, Inodes: inodes, ByQuota: true} }
	walked := Usage{Bytes: 4096, Inodes: 5}
	for name, tc := range map[string]struct {
		before, after Usage
		want          bool
	}{
		"all the same":                    {quota(4096, 5), quota(4096, 5), true},
		"more bytes are counted":          {quota(8192, 5), quota(8192, 5), false},
		"more files are counted":          {quota(4096, 6), quota(4096, 6), false},
		"less is counted":                 {quota(0, 4), quota(0, 4), false},
		"it grew":                         {quota(4096, 5), quota(8192, 6), false},
		"it shrank to what the walk says": {quota(8192, 6), quota(4096, 5), false},
	} {
		assert.Equal(t, tc.want, walked.confirmedBy(tc.before, tc.after), name)
	}
}

func TestTrustIsUsedUp(t *testing.T) {
	var confirmed confirmedRoots
	one := projectRoot{inode: inode{dev: 1, ino: 2}, project: 7}
	assert.False(t, confirmed.use(one), "no tree is confirmed at first")
	confirmed.confirm(one)
	for _, other := range []projectRoot{
		{inode: inode{dev: 2, ino: 2}, project: 7}, {inode: inode{dev: 1, ino: 3}, project: 7}, {inode: one.inode, project: 8},
	} {
		assert.False(t, confirmed.use(other))
	}
	for range maxUses {
		assert.True(t, confirmed.use(one))
	}
	assert.False(t, confirmed.use(one))
	assert.Empty(t, confirmed.uses, "a tree without uses is not stored")
	confirmed.confirm(one)
	assert.True(t, confirmed.use(one))
}

func TestTrustIsBounded(t *testing.T) {
	var confirmed confirmedRoots
	root := func(i int) projectRoot { return projectRoot{inode: inode{ino: uint64(i)}, project: 1} }
	for i := range 3 * maxConfirmed {
		confirmed.confirm(root(i))
		assert.True(t, confirmed.use(root(i)), "the newest is confirmed")
	}
	assert.Len(t, confirmed.uses, maxConfirmed)
	for known := range confirmed.uses {
		confirmed.confirm(known)
	}
	assert.Len(t, confirmed.uses, maxConfirmed, "a known tree replaces no other")
}
