package mount

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseTable(t *testing.T) {
	for name, tc := range map[string]struct {
		line string
		want MountPoint
	}{
		"plain": {
			`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`,
			MountPoint{
				ID: 36, ParentID: 35, Major: 98, Root: "/mnt1", Path: "/mnt2", Source: "/dev/root", FSType: "ext3",
				Options: []string{"rw", "noatime"}, SuperOptions: []string{"rw", "errors=continue"},
				Propagation: []string{"master:1"},
			},
		},
		"several optional fields": {
			`1 0 0:5 / / rw shared:7 master:1 propagate_from:2 - tmpfs none rw`,
			MountPoint{
				ID: 1, Minor: 5, Root: "/", Path: "/", FSType: "tmpfs", Options: []string{"rw"},
				SuperOptions: []string{"rw"}, Propagation: []string{"shared:7", "master:1", "propagate_from:2"},
			},
		},
		"escapes": {
			`2 1 0:5 /a\040b /t\011n\012b\134\040(deleted) ro - fuse.x user@host:/a\040b ro,x=\054`,
			MountPoint{
				ID: 2, ParentID: 1, Minor: 5, Root: "/a b", Path: "/t\tn\nb\\ (deleted)", FSType: "fuse.x",
				Source: "user@host:/a b", Options: []string{"ro"}, SuperOptions: []string{"ro", "x=,"},
			},
		},
		"an escaped escape is decoded once": {
			`2 1 0:5 / /\134040 rw - tmpfs t rw`,
			MountPoint{
				ID: 2, ParentID: 1, Minor: 5, Root: "/", Path: `/\040`, FSType: "tmpfs", Source: "t",
				Options: []string{"rw"}, SuperOptions: []string{"rw"},
			},
		},
		"empty source": {
			`2 1 0:5 / /a rw - tmpfs  rw,size=1k`,
			MountPoint{
				ID: 2, ParentID: 1, Minor: 5, Root: "/", Path: "/a", FSType: "tmpfs",
				Options: []string{"rw"}, SuperOptions: []string{"rw", "size=1k"},
			},
		},
		"a path that is a dash": {
			`2 1 0:5 - - - - - - -`,
			MountPoint{
				ID: 2, ParentID: 1, Minor: 5, Root: "-", Path: "-", FSType: "-", Source: "-",
				Options: []string{"-"}, SuperOptions: []string{"-"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseTable(tc.line + "\n")
			require.NoError(t, err)
			assert.Equal(t, []MountPoint{tc.want}, got)
		})
	}
}

func TestParseTableRefuses(t *testing.T) {
	for _, line := range []string{
		"x", "1 2 3:4 / / rw", "1 2 3:4 / / rw -", "x 2 3:4 / / rw - t s o", "1 x 3:4 / / rw - t s o",
		"1 2 3 / / rw - t s o", "1 2 x:4 / / rw - t s o", "1 2 3:99999999999 / / rw - t s o", "-1 2 3:4 / / rw - t s o",
	} {
		_, err := parseTable(line)
		require.ErrorIs(t, err, ErrInvalid, line)
	}
}

// line writes a mount as the kernel does.
func line(m MountPoint) string {
	var b strings.Builder
	id := func(n uint64) string { return strconv.FormatUint(n, 10) }
	device := id(uint64(m.Major)) + ":" + id(uint64(m.Minor))
	for _, field := range []string{id(m.ID), id(m.ParentID), device, escape(m.Root), escape(m.Path), "rw", "-", "t", escape(m.Source)} {
		b.WriteString(field + " ")
	}
	return b.String() + "rw\n"
}

// escape is the kernel's mangling of names.
func escape(s string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(s)
}

// tree makes a table of lines "id parent path".
func tree(t *testing.T, lines ...string) []MountPoint {
	t.Helper()
	var table []MountPoint
	for _, l := range lines {
		fields := strings.Fields(l)
		id, err := strconv.ParseUint(fields[0], 10, 64)
		require.NoError(t, err)
		parent, err := strconv.ParseUint(fields[1], 10, 64)
		require.NoError(t, err)
		table = append(table, MountPoint{ID: id, ParentID: parent, Path: fields[2], Root: "/", Minor: uint32(id)})
	}
	return table
}

func TestLookup(t *testing.T) {
	table := tree(t,
		"1 0 /", "2 1 /proc", "3 1 /a", "4 3 /a/b", "5 1 /stack", "6 5 /stack",
		"7 1 /hidden/deep", "8 1 /hidden", "9 1 /ab",
	)
	for name, want := range map[string]struct {
		id uint64
		is bool
	}{
		"/": {1, true}, "/proc": {2, true}, "/proc/1": {2, false}, "/a": {3, true}, "/a/c": {3, false},
		"/a/b": {4, true}, "/a/b/c": {4, false}, "/stack": {6, true}, "/stack/x": {6, false},
		"/hidden": {8, true}, "/hidden/deep": {8, false}, "/ab": {9, true}, "/abc": {1, false}, "/none": {1, false},
	} {
		found, is := lookup(table, name)
		assert.Equal(t, want.id, found.ID, name)
		assert.Equal(t, want.is, is, name)
	}
}

func TestLookupInOddTables(t *testing.T) {
	_, is := lookup(nil, "/a")
	assert.False(t, is, "empty table")
	found, is := lookup(tree(t, "5 1 /a", "6 1 /b", "7 5 /a/c"), "/a/c")
	assert.True(t, is, "a root that is no mount")
	assert.EqualValues(t, 7, found.ID)
	_, is = lookup(tree(t, "1 1 /", "2 3 /a", "3 2 /a"), "/a")
	assert.False(t, is, "a circle")
	found, is = lookup(tree(t, "1 1 /", "2 1 /"), "/")
	assert.True(t, is)
	assert.EqualValues(t, 2, found.ID, "a root on the root")
	found, is = lookup(tree(t, "1 1 /", "2 1 /a", "3 1 /a"), "/a")
	assert.True(t, is)
	assert.EqualValues(t, 3, found.ID, "two on one place")
}

func TestRefs(t *testing.T) {
	table := tree(t, "1 0 /", "2 1 /a", "3 1 /b", "4 1 /c", "5 1 /d")
	table[2].Minor = 2
	table[3].Minor, table[3].Root = 2, "/part"
	assert.Equal(t, []string{"/b"}, refs(table, "/a"))
	assert.Equal(t, []string{"/a"}, refs(table, "/b"))
	assert.Empty(t, refs(table, "/c"))
	assert.Empty(t, refs(table, "/d"))
	assert.Empty(t, refs(table, "/a/x"))
}
