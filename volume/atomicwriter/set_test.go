package atomicwriter

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func user(id int64) *int64 { return &id }

func TestNewRefusesWhatIsNoDirectoryOfAVolume(t *testing.T) {
	for _, dir := range []string{"", "a", "./a", "/", "//", "/a/../b", "/a/..", "/a\x00"} {
		_, err := New(dir, Options{})
		assert.ErrorIs(t, err, ErrInvalid, "%q", dir)
	}
	w, err := New("/a//b/./c/", Options{})
	require.NoError(t, err)
	assert.Equal(t, "/a/b/c", w.Dir())
}

func TestPathsAreCheckedAndShortened(t *testing.T) {
	long := strings.Repeat("n", maxElement)
	for name, want := range map[string]string{
		"a": "a", "a/b": "a/b", "./a": "a", "a//b/": "a/b", "a/./b": "a/b", ".hidden": ".hidden", "a/..b": "a/..b",
		"a/...": "a/...", " ": " ", "a b\n\t\\040": "a b\n\t\\040", "p1": "p1", "x (deleted)": "x (deleted)", "\xff": "\xff",
		long: long, strings.Repeat("d/", maxPath/2-1) + "ff": strings.Repeat("d/", maxPath/2-1) + "ff",
	} {
		s, err := newSet(map[string]FileProjection{name: {}})
		require.NoError(t, err, "%q", name)
		assert.Equal(t, want, s.files[0].path)
	}
	for _, name := range []string{
		"", ".", "./", "/", "/a", "//deleted", "..", "../a", "a/..", "a/../b", "..a", "...", "..data", "./..data", ".//..data",
		"..data_tmp", "..2026_11_22_00_53_48.1/a", "a\x00b", long + "n", "a/" + long + "n/b", strings.Repeat("d/", maxPath/2) + "f",
	} {
		_, err := newSet(map[string]FileProjection{name: {}})
		assert.ErrorIs(t, err, ErrInvalid, "%q", name)
	}
}

func TestPathsThatConflictAreRefused(t *testing.T) {
	for _, names := range [][]string{{"a", "a/b"}, {"a", "a//"}, {"a", "./a"}, {"x/y/z", "x/y"}, {"a/b", "a", "a-"}} {
		payload := make(map[string]FileProjection)
		for _, name := range names {
			payload[name] = FileProjection{}
		}
		_, err := newSet(payload)
		assert.ErrorIs(t, err, ErrInvalid, "%q", names)
	}
	_, err := newSet(map[string]FileProjection{"a/b": {}, "a-": {}, "a/c": {}, "ab": {}})
	require.NoError(t, err)
}

func TestModesAndOwnersAreChecked(t *testing.T) {
	for _, p := range []FileProjection{
		{Mode: -1}, {Mode: 0o1000}, {Mode: 0o4755}, {FsUser: user(-1)}, {FsUser: user(1 << 32)}, {FsUser: user(1<<32 - 1)},
	} {
		_, err := newSet(map[string]FileProjection{"a": p})
		assert.ErrorIs(t, err, ErrInvalid, "%+v", p)
	}
	for _, p := range []FileProjection{{}, {Mode: 0o777}, {FsUser: user(0)}, {FsUser: user(1<<32 - 2)}} {
		_, err := newSet(map[string]FileProjection{"a": p})
		assert.NoError(t, err, "%+v", p)
	}
}

func digestOf(t *testing.T, payload map[string]FileProjection) uint64 {
	t.Helper()
	s, err := newSet(payload)
	require.NoError(t, err)
	return s.digest()
}

func TestDigestIsOfAllButData(t *testing.T) {
	payload := map[string]FileProjection{"a": {Mode: 0o644}, "b/c": {Mode: 0o600, FsUser: user(7)}}
	want := digestOf(t, payload)
	assert.Equal(t, want, digestOf(t, map[string]FileProjection{
		"./a": {Mode: 0o644, Data: []byte("secret")}, "b//c": {Mode: 0o600, FsUser: user(7)},
	}), "what files hold must not be guessed from a name")
	for name, other := range map[string]map[string]FileProjection{
		"mode":         {"a": {Mode: 0o640}, "b/c": {Mode: 0o600, FsUser: user(7)}},
		"owner":        {"a": {Mode: 0o644}, "b/c": {Mode: 0o600, FsUser: user(8)}},
		"no owner":     {"a": {Mode: 0o644}, "b/c": {Mode: 0o600}},
		"another file": {"a": {Mode: 0o644}, "b/d": {Mode: 0o600, FsUser: user(7)}},
		"less":         {"a": {Mode: 0o644}},
	} {
		assert.NotEqual(t, want, digestOf(t, other), name)
	}
	assert.NotEqual(t, digestOf(t, map[string]FileProjection{"a": {}}), digestOf(t, map[string]FileProjection{"a": {FsUser: user(0)}}))
	forged := "a 0 -1\n1:b"
	assert.NotEqual(t, digestOf(t, map[string]FileProjection{"a": {}, "b": {}}), digestOf(t, map[string]FileProjection{forged: {}}))
}

func TestSetNames(t *testing.T) {
	now := time.Date(2026, 11, 22, 23, 53, 48, 0, time.FixedZone("east", 3600))
	name := newSetName(now, 42)
	assert.Regexp(t, `^\.\.2026_11_22_22_53_48\.\d{30}$`, name)
	assert.True(t, isSetName(name))
	assert.True(t, hasDigest(name, 42))
	assert.False(t, hasDigest(name, 43))
	assert.NotEqual(t, name, newSetName(now, 42))
	assert.True(t, isSetName("..2016_02_01_15_04_05.1234567890"), "Kubernetes' own")
	assert.False(t, hasDigest("..2016_02_01_15_04_05.1234567890", 1234567890))
	for _, name := range []string{
		"", "..", "..data", "..data_tmp", "..2016_02_01_15_04_05", "..2016_02_01_15_04_05.", "..2016_02_01_15_04_05.x",
		"..2016_02_01_15_04_05.1/..", "..2016_02_01_15_04_05.1/", "../2016_02_01_15_04_05.1", "2016_02_01_15_04_05.1",
		"..2016_13_01_15_04_05.1", "..2016_02_01_15_04_05.-1", "..2016_02_01_15_04_05.1\n", "..2016_02_01_15_04_05.5.1",
	} {
		assert.False(t, isSetName(name), "%q", name)
	}
}
