package mount

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// now is what the kernel knows when a reading has ended: the other ids of the mounts, by their unique ids.
type now map[uint64]uint64

func (n now) oldID(id uint64) (uint64, bool) {
	old, there := n[id]
	return old, there
}

func (n now) facts(id uint64) (MountPoint, error) {
	if old, there := n[id]; there {
		return MountPoint{UniqueID: id, ID: old, Path: "described anew"}, nil
	}
	return MountPoint{}, unix.ENOENT
}

// TestMountsThatComeAndGoWhileTheTableIsReadGetNoWrongUniqueID gives the ids of the table's lines, in which other ids of
// mounts that have gone are used again.
func TestMountsThatComeAndGoWhileTheTableIsReadGetNoWrongUniqueID(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []uint64
		lines         []uint64 // other ids in the table
		now           now
		want          []uint64 // unique ids of the lines
		anew          []bool   // nil for none
	}{
		"nothing has changed": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 102, 103},
			lines: []uint64{1, 7, 3}, now: now{101: 1, 102: 7, 103: 3}, want: []uint64{101, 102, 103},
		},
		"one came and went, and the ids before and after are the same": {
			before: []uint64{101, 102}, after: []uint64{101, 102},
			lines: []uint64{1, 2, 9}, now: now{101: 1, 102: 2}, want: []uint64{101, 102, 0},
		},
		"one has gone before it could be read": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 103},
			lines: []uint64{1, 3}, now: now{101: 1, 103: 3}, want: []uint64{101, 103},
		},
		"one has gone after it was read": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 103},
			lines: []uint64{1, 2, 3}, now: now{101: 1, 103: 3}, want: []uint64{101, 0, 103},
		},
		"one went and another came, so that the table is as long": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 103, 104},
			lines: []uint64{1, 3, 4}, now: now{101: 1, 103: 3, 104: 4}, want: []uint64{101, 103, 104}, anew: []bool{2: true},
		},
		"another came with the other id of one that was read": {
			before: []uint64{101, 102}, after: []uint64{101, 103},
			lines: []uint64{1, 2}, now: now{101: 1, 103: 2}, want: []uint64{101, 103}, anew: []bool{1: true},
		},
		"both were read": {
			before: []uint64{101, 102}, after: []uint64{101, 103},
			lines: []uint64{1, 2, 2}, now: now{101: 1, 103: 2}, want: []uint64{101, 0, 103}, anew: []bool{2: true},
		},
		"a later one has the other id of one that has gone": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 103, 104},
			lines: []uint64{2, 1, 3}, now: now{101: 2, 103: 3, 104: 1}, want: []uint64{101, 104, 103}, anew: []bool{1: true},
		},
		"one has gone since": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 102, 103, 104},
			lines: []uint64{1, 2, 3}, now: now{101: 1, 103: 3}, want: []uint64{101, 0, 103},
		},
		"one cannot be seen in the table": {
			before: []uint64{101, 102, 103}, after: []uint64{101, 102, 103},
			lines: []uint64{1, 3}, now: now{101: 1, 102: 2, 103: 3}, want: []uint64{101, 103},
		},
		"all have gone": {before: []uint64{101}, lines: []uint64{1}, want: []uint64{0}},
	} {
		t.Run(name, func(t *testing.T) {
			r := reading{before: c.before, after: c.after}
			for _, id := range c.lines {
				r.table = append(r.table, MountPoint{ID: id, Path: "as it was read"})
			}
			r.setUniqueIDs(c.now.oldID, c.now.facts)
			var got []uint64
			for i, m := range r.table {
				got = append(got, m.UniqueID)
				anew := i < len(c.anew) && c.anew[i]
				assert.Equal(t, anew, m.Path == "described anew", "line %d", i)
				if old, there := c.now[m.UniqueID]; there {
					assert.Equal(t, old, m.ID, "line %d", i)
				}
			}
			assert.Equal(t, c.want, got)
		})
	}
}
