package mount

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// simpleTable reads a mount table in the plainest way, for comparison. It reports false where a line is malformed.
func simpleTable(content string) (table []MountPoint, ok bool) {
	for line := range strings.SplitSeq(content, "\n") {
		if line == "" {
			continue
		}
		f := strings.Split(line, " ")
		if len(f) < 7 {
			return nil, false
		}
		dash := slices.Index(f[6:], "-")
		if dash < 0 || len(f) == 6+dash+1 {
			return nil, false
		}
		rest := append(slices.Clone(f[6+dash+1:]), "", "")
		m := MountPoint{
			Root: simpleUnescape(f[3]), Path: simpleUnescape(f[4]), Options: simpleOptions(f[5]),
			FSType: simpleUnescape(rest[0]), Source: simpleUnescape(rest[1]), SuperOptions: simpleOptions(rest[2]),
		}
		if m.Source == "none" {
			m.Source = ""
		}
		if dash > 0 {
			m.Propagation = f[6 : 6+dash]
		}
		device := append(strings.SplitN(f[2], ":", 2), "")
		numbers := [4]uint64{}
		for i, field := range []string{f[0], f[1], device[0], device[1]} {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil || i >= 2 && n > 1<<32-1 {
				return nil, false
			}
			numbers[i] = n
		}
		m.ID, m.ParentID, m.Major, m.Minor = numbers[0], numbers[1], uint32(numbers[2]), uint32(numbers[3])
		table = append(table, m)
	}
	return table, true
}

func simpleOptions(text string) (options []string) {
	if text == "" {
		return nil
	}
	for pieces := strings.Split(text, ","); len(pieces) > 0; {
		n := simpleLabel(pieces)
		options = append(options, simpleUnescape(strings.Join(pieces[:n], ",")))
		pieces = pieces[n:]
	}
	return options
}

// simpleLabel is of how many pieces the first option is made: of more than one, when it is a label in quotes.
func simpleLabel(pieces []string) int {
	for _, key := range []string{"context", "fscontext", "defcontext", "rootcontext"} {
		label, is := strings.CutPrefix(pieces[0], key+`="`)
		if !is || strings.Contains(label, `"`) {
			continue
		}
		for i, piece := range pieces[1:] {
			if at := strings.Index(piece, `"`); at >= 0 && at == len(piece)-1 {
				return i + 2
			} else if at >= 0 {
				break
			}
		}
	}
	return 1
}

func TestLabelInQuotesIsOneOption(t *testing.T) {
	const label = `context="system_u:object_r:container_file_t:s0:c1,c2"`
	for text, want := range map[string][]string{
		"rw," + label + ",size=1k": {"rw", label, "size=1k"},
		label:                      {label},
		"rw," + label:              {"rw", label},
		`rw,fscontext="a,b,c",defcontext="d,e",x`: {"rw", `fscontext="a,b,c"`, `defcontext="d,e"`, "x"},
		`rw,rootcontext="a",x`:                    {"rw", `rootcontext="a"`, "x"},
		`rw,context=a,b"`:                         {"rw", "context=a", `b"`},
		`rw,context="a,b`:                         {"rw", `context="a`, "b"},
		`rw,context="a,b"c,d`:                     {"rw", `context="a`, `b"c`, "d"},
		`rw,user="a,b",x`:                         {"rw", `user="a`, `b"`, "x"},
		"rw,,":                                    {"rw", "", ""},
	} {
		table, err := parseTable("1 1 0:1 / / rw - tmpfs none " + text)
		require.NoError(t, err)
		assert.Equal(t, want, table[0].SuperOptions)
		assert.Equal(t, want, simpleOptions(text))
	}
}

func simpleUnescape(s string) string {
	var decoded []byte
	for s != "" {
		if len(s) >= 4 && s[0] == '\\' {
			if c, err := strconv.ParseUint(s[1:4], 8, 8); err == nil {
				decoded, s = append(decoded, byte(c)), s[4:]
				continue
			}
		}
		decoded, s = append(decoded, s[0]), s[1:]
	}
	return string(decoded)
}

func FuzzParseTable(f *testing.F) {
	for _, seed := range []string{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`,
		`2 1 0:5 /a\040b /t\011n\012b\134 ro - tmpfs  ro`,
		"1 1 0:0 / / rw - t s o\n2 1 0:0 / / rw - t s o\n3 2 0:0 / /\\377 rw - t s o",
		"1 1 0:0 / / rw,a - t s o,p\n\n2 1 0:0 / / rw,a shared:1 - t s o,p\n3 2 0:0 / / ro shared:1 master:2 - t none o",
		`1 2 3:4 / /\999\8 rw shared:1 - t`,
		`1 2 3:4 / / rw - t s rw,context="a:s0:c1,c2",fscontext="b,c"x,user="d,e",rootcontext="f`,
		`1 2 3:4 / /\40\0400\777 , - - - -`,
		"1 2 3:4 / / rw -", "1 2 3:4  /a  -  ", "1 2 3 / / rw - t", "1 2 3:4294967296 / / rw - t",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		table, err := parseTable(content)
		want, ok := simpleTable(content)
		if !ok {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.NoError(t, err)
		require.Len(t, table, len(want))
		for i := range table {
			require.Equal(t, want[i], table[i])
			for _, words := range [][]string{table[i].Options, table[i].SuperOptions, table[i].Propagation} {
				require.Equal(t, len(words), cap(words), "an append would overwrite what comes behind")
			}
		}
		for i := range min(len(table), 8) {
			requireConsistent(t, table, table[i])
		}
	})
}

// requireConsistent checks what the table says of one of its mounts.
func requireConsistent(t *testing.T, table []MountPoint, m MountPoint) {
	t.Helper()
	if found, is := lookup(table, m.Path); is {
		require.Equal(t, m.Path, found.Path)
		for _, path := range refs(table, m.Path) {
			require.True(t, slices.ContainsFunc(table, func(other MountPoint) bool {
				return other.Path == path && other.content() == found.content()
			}))
		}
	}
	again, err := parseTable(line(m))
	require.NoError(t, err)
	assert.Equal(t, m.Path, again[0].Path)
	assert.Equal(t, m.Root, again[0].Root)
	assert.Equal(t, m.Source, again[0].Source)
}
