package volume

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSplitUniqueName(t *testing.T) {
	for name, want := range map[v1.UniqueVolumeName][2]string{
		"kubernetes.io/nfs/server/export": {"kubernetes.io/nfs", "server/export"},
		"example.com/disk/disk-9":         {"example.com/disk", "disk-9"},
		"example.com/disk//":              {"example.com/disk", "/"},
	} {
		plugin, volume, err := SplitUniqueName(name)
		require.NoError(t, err)
		assert.Equal(t, want, [2]string{plugin, volume})
		assert.Equal(t, name, GetUniqueVolumeName(plugin, volume))
	}
	for _, name := range []v1.UniqueVolumeName{"", "a", "a/b", "a/b/", "/b/c", "a//c", "/", "//", "///"} {
		_, _, err := SplitUniqueName(name)
		assert.ErrorIs(t, err, ErrInvalid, "%q", name)
	}
}

type named struct {
	plain
	volumeName string
	err        error
}

func (n *named) GetVolumeName(*Spec) (string, error) { return n.volumeName, n.err }

func TestGetUniqueVolumeNameFromSpec(t *testing.T) {
	spec := NewSpecFromVolume(&v1.Volume{Name: "data"})
	cause := errors.New("not mine")

	name, err := GetUniqueVolumeNameFromSpec(&named{plain: plain{name: "a.b/c"}, volumeName: "disk-9"}, spec)
	require.NoError(t, err)
	assert.Equal(t, v1.UniqueVolumeName("a.b/c/disk-9"), name)

	_, err = GetUniqueVolumeNameFromSpec(&named{plain: plain{name: "a.b/c"}, err: cause}, spec)
	require.ErrorIs(t, err, cause)
	_, err = GetUniqueVolumeNameFromSpec(&named{plain: plain{name: "a.b/c"}}, spec)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = GetUniqueVolumeNameFromSpec(nil, spec)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = GetUniqueVolumeNameFromSpec(&named{}, nil)
	require.ErrorIs(t, err, ErrInvalid)

	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "7f3c"}}
	assert.Equal(t, v1.UniqueVolumeName("a.b/c/pods/7f3c/data"),
		GetUniqueVolumeNameFromSpecWithPod(GetUniquePodName(pod), &plain{name: "a.b/c"}, spec))
}

func TestCheckPathElement(t *testing.T) {
	for _, name := range []string{"pv-1", "a", "...", ".hidden", "a b", "ä", "-", "~", strings.Repeat("n", 255)} {
		require.NoError(t, CheckPathElement(name), "%q", name)
	}
	for _, name := range []string{
		"", ".", "..", "/", "a/b", "../x", `a\b`, "a\x00", "a\n", "\x7f", "\xff", strings.Repeat("n", 256),
	} {
		assert.ErrorIs(t, CheckPathElement(name), ErrInvalid, "%q", name)
	}
}

func TestValidatePathNoBacksteps(t *testing.T) {
	for _, path := range []string{"", "a", "a/..b", "/a/b..", "a/.../b"} {
		require.NoError(t, ValidatePathNoBacksteps(path), "%q", path)
	}
	for _, path := range []string{"..", "../a", "a/..", "a/../b", "/.."} {
		assert.ErrorIs(t, ValidatePathNoBacksteps(path), ErrInvalid, "%q", path)
	}
}

func TestEscapeQualifiedName(t *testing.T) {
	assert.Equal(t, "kubernetes.io~nfs", EscapeQualifiedName("kubernetes.io/nfs"))
	assert.Equal(t, "kubernetes.io~nfs", EscapeQualifiedName("kubernetes.io~nfs"))
	assert.Equal(t, "kubernetes.io/nfs", UnescapeQualifiedName("kubernetes.io~nfs"))
	assert.Equal(t, "kubernetes.io/nfs", UnescapeQualifiedName("kubernetes.io/nfs"))
}

// FuzzSplitUniqueName holds that what splits is put together to the same name again, and that the parts of a name that
// was put together come out again.
func FuzzSplitUniqueName(f *testing.F) {
	f.Add("kubernetes.io/nfs/server//export")
	f.Add("a/b")
	f.Fuzz(func(t *testing.T, name string) {
		plugin, volume, err := SplitUniqueName(v1.UniqueVolumeName(name))
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.Equal(t, name, string(GetUniqueVolumeName(plugin, volume)))
		require.Equal(t, 1, strings.Count(plugin, "/"))
		require.NotEmpty(t, volume)

		again, rest, err := SplitUniqueName(GetUniqueVolumeName(plugin, volume))
		require.NoError(t, err)
		require.Equal(t, [2]string{plugin, volume}, [2]string{again, rest})
	})
}

// FuzzEscape holds that every valid plugin name survives escaping as one path element, and that no two names meet.
func FuzzEscape(f *testing.F) {
	f.Add("kubernetes.io/host-path")
	f.Add("a/b~c")
	f.Fuzz(func(t *testing.T, name string) {
		if ValidatePluginName(name) != nil {
			return
		}
		escaped := EscapeQualifiedName(name)
		require.NotContains(t, escaped, "/")
		require.NotEqual(t, name, escaped)
		require.Equal(t, name, UnescapeQualifiedName(escaped))
		require.Equal(t, escaped, EscapeQualifiedName(escaped))
		if len(escaped) <= maxPathElement {
			require.NoError(t, CheckPathElement(escaped))
		}
	})
}

// FuzzDriver holds that the driver's name of every plugin leads back to the plugin, unless the plugin's own part has a
// dot.
func FuzzDriver(f *testing.F) {
	f.Add("volumekit.io/loop-block")
	f.Add("example.com/a.b")
	f.Fuzz(func(t *testing.T, name string) {
		_, base, _ := strings.Cut(name, "/")
		if ValidatePluginName(name) != nil || strings.Contains(base, ".") {
			return
		}
		require.Equal(t, name, PluginNameOfDriver(DriverOfPluginName(name)))
	})
}

// TestUniqueNamesDoNotMeet: a name differs whenever the UID or the volume's name differs, and from what a plugin gives.
func TestUniqueNamesDoNotMeet(t *testing.T) {
	parts := []string{"a", "b", "a-b", "b-a", "a-b-a", "pods", "pods-a", "1", "11", "-", "a.b", "~", "é"}
	seen := map[v1.UniqueVolumeName][2]string{}
	for _, uid := range parts {
		for _, name := range parts {
			spec := &Spec{Volume: &v1.Volume{Name: name}}
			unique := GetUniqueVolumeNameFromSpecWithPod(UniquePodName(uid), &plain{name: "a.b/c"}, spec)
			other, met := seen[unique]
			assert.False(t, met, "%q is that of %q and of %q", unique, other, [2]string{uid, name})
			seen[unique] = [2]string{uid, name}
			plugin, rest, err := SplitUniqueName(unique)
			require.NoError(t, err)
			assert.Equal(t, "a.b/c", plugin)
			_, err = GetUniqueVolumeNameFromSpec(&named{plain: plain{name: "a.b/c"}, volumeName: rest}, spec)
			require.ErrorIs(t, err, ErrInvalid, "a plugin may not give it to a volume that pods share")
		}
	}
}
