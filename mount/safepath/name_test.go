package safepath

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refused are names by which others were led elsewhere.
var refused = []string{
	"", ".", "..", "/", "a/..", "../a", "a/../../b", "a/../b", "/etc", "a//b", "a/", "a/.", "./a",
	`..\..`, `\..\`, `a\..\b`, "a\x00b", "\x00", strings.Repeat("x", 256), strings.Repeat("xx/", 1400) + "x",
}

// accepted are names that only look like it.
var accepted = []string{
	"a", "a/b", "...", "..a", "a..", "..data", ".hidden", "%2e%2e", "%2e%2e%2f", "a ", " ", `a\b`, "a\nb", "a:b", "~",
	"-rf", "~root", "\xff\xfe", strings.Repeat("x", 255), "//deleted"[2:], "a (deleted)", `\040`,
}

func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	for _, name := range refused {
		require.ErrorIs(t, CheckName(name), ErrInvalid, "%q", name)
	}
	for _, name := range accepted {
		require.NoError(t, CheckName(name), "%q", name)
	}
	require.ErrorIs(t, checkElement("a/b"), ErrInvalid)
	require.ErrorIs(t, CheckName("a/../b"), ErrEscapes)
	require.NotErrorIs(t, CheckName("a//b"), ErrEscapes)
}

func TestSubpathsAreThoseOfKubernetesButNeverTheWholeVolume(t *testing.T) {
	for path, want := range map[string]string{
		"a": "a", "a/": "a", "./a": "a", "a//b/./c": "a/b/c", "..data/key": "..data/key",
	} {
		name, err := CleanSubpath(path)
		require.NoError(t, err)
		assert.Equal(t, want, name)
	}
	for _, path := range []string{"", ".", "./", "/", "//", "/a", "..", "a/..", "./../a", `a\..`, "a\x00"} {
		_, err := CleanSubpath(path)
		require.ErrorIs(t, err, ErrInvalid, "%q", path)
	}
}

func TestPrefixesAreTheWayToAName(t *testing.T) {
	assert.Equal(t, []string{"a", "a/bc", "a/bc/d"}, slices.Collect(prefixes("a/bc/d")))
	assert.Equal(t, []string{"a"}, slices.Collect(prefixes("a")))
}

func FuzzElement(f *testing.F) {
	for _, name := range append(slices.Clone(refused), accepted...) {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, element string) {
		if checkElement(element) != nil {
			return
		}
		joined := path.Join("/root/of/all", element)
		if path.Dir(joined) != "/root/of/all" || path.Base(joined) != element {
			t.Errorf("%q is no element: joined it is %q", element, joined)
		}
		if windows := strings.ReplaceAll(element, `\`, "/"); strings.HasPrefix(path.Join("/root", windows)+"/", "/root/") == false {
			t.Errorf("%q leads upwards for who takes a backslash for a slash", element)
		}
		if CheckName(element) != nil {
			t.Errorf("%q is an element, but no name", element)
		}
	})
}

func FuzzSubpath(f *testing.F) {
	for _, name := range append(slices.Clone(refused), accepted...) {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, sub string) {
		name, err := CleanSubpath(sub)
		if err != nil {
			return
		}
		if err := CheckName(name); err != nil {
			t.Errorf("%q became %q: %v", sub, name, err)
		}
		if again, err := CleanSubpath(name); err != nil || again != name {
			t.Errorf("%q became %q and then %q (%v)", sub, name, again, err)
		}
		if joined := path.Join("/volume", sub); joined != "/volume/"+name {
			t.Errorf("%q is %q beneath the volume, and not %q", sub, joined, name)
		}
	})
}
