package atomicwriter

import (
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzPaths holds that every path of a payload that is accepted lies beneath the directory of its set, meets no name of
// the writer's, and is the only one that means that file.
func FuzzPaths(f *testing.F) {
	long := strings.Repeat("n", maxElement)
	for _, names := range [][2]string{
		{"a", "a/b"}, {"a", "./a"}, {"a/", "a"}, {"..data", "./..data"}, {"..", "../a"}, {"a/../b", "b"}, {"a/..", ".."},
		{"..2026_11_22_00_53_48.1/x", "..data_tmp"}, {"a b", `a\040b`}, {"a\nb", "a\tb"}, {`a\b`, "a/b"}, {"x (deleted)", "//deleted"},
		{"p1", "p10"}, {"\xff", "\xfe"}, {long, long + "n"}, {strings.Repeat("d/", 2047) + "f", "d/d"}, {"", "/"}, {"a\x00", "..a"},
		{".", ".//."}, {"a-", "a/b"}, {"/abs", "a//b"},
	} {
		f.Add(names[0], names[1])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		p := map[string]FileProjection{one: {Data: []byte("1"), Mode: 0o600}, two: {Data: []byte("2"), Mode: 0o644}}
		s, err := newSet(p)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			require.Less(t, len(err.Error()), 5*maxPath, "an error is for people to read")
			return
		}
		require.Len(t, s.files, len(p))
		const root = "/volume/..2026_11_22_00_53_48.1"
		for name := range p {
			short, err := checkPath(name)
			require.NoError(t, err)
			requireInside(t, s, root, name, short)
		}
		first, second := s.files[0], s.files[len(s.files)-1]
		if len(s.files) == 2 {
			require.NotEqual(t, first.path, second.path)
			require.False(t, strings.HasPrefix(second.path, first.path+"/") || strings.HasPrefix(first.path, second.path+"/"))
		}
	})
}

func requireInside(t *testing.T, s set, root, name, short string) {
	t.Helper()
	require.Equal(t, root+"/"+short, filepath.Join(root, name))
	again, err := checkPath(short)
	require.NoError(t, err)
	require.Equal(t, short, again)
	top, _, _ := strings.Cut(short, "/")
	require.False(t, strings.HasPrefix(top, ownPrefix) || isSetName(top) || top == dataLink || top == newDataLink)
	for element := range strings.SplitSeq(short, "/") {
		require.NotContains(t, []string{"", ".", ".."}, element)
		require.LessOrEqual(t, len(element), maxElement)
	}
	require.NotContains(t, short, "\x00")
	found, ok := s.find(short)
	require.True(t, ok)
	require.Equal(t, short, found.path)
	for dir := path.Dir(short); dir != "."; dir = path.Dir(dir) {
		require.Contains(t, s.dirs, dir)
	}
	visible := false
	for _, v := range s.visible() {
		visible = visible || v.name == top && v.target() == "..data/"+top
	}
	require.True(t, visible)
}

// FuzzSetName holds that only names which this package or Kubernetes may have made are taken for sets, because those are
// removed with all that is in them.
func FuzzSetName(f *testing.F) {
	for _, name := range []string{
		"..2026_11_22_00_53_48.1234567890", "..data", "..data_tmp", "..", "..2016_02_30_15_04_05.1", "../../..2026_11_22_00_53_48.1",
		"..2026_11_22_00_53_48.1/..", "..2026_11_22_00_53_48.1 (deleted)", "..2026_11_22_00_53_48.٣", "..2026_11_22_00_53_48.1\n",
		"..2026_11_22_00_53_48.123456789000000000000000000042",
	} {
		f.Add(name, uint64(42))
	}
	f.Fuzz(func(t *testing.T, name string, digest uint64) {
		made := newSetName(time.Unix(int64(digest%(1<<33)), 0), digest)
		require.True(t, isSetName(made), "%q", made)
		require.True(t, hasDigest(made, digest))
		require.False(t, hasDigest(made, digest+1))
		if !isSetName(name) {
			require.False(t, hasDigest(name, digest))
			return
		}
		require.Regexp(t, `^\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.[0-9]+\z`, name)
		require.Equal(t, name, filepath.Base(name))
		_, err := checkPath(name)
		require.ErrorIs(t, err, ErrInvalid, "no file of a payload is called so")
	})
}
