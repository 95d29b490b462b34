package volume

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// FuzzPathElement holds that a checked name is one element of a path, also after a join.
func FuzzPathElement(f *testing.F) {
	for _, name := range []string{
		"", ".", "..", "...", "a b", "a\tb", "a\nb", `a\b`, `\040`, "x (deleted)", "//deleted", "\xff", "p1", "p10", "~",
		strings.Repeat("n", 255), strings.Repeat("n", 256), strings.Repeat("n", 4096), "..data", "a\x00b", "\u202e", "-rf",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if err := CheckPathElement(name); err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		joined := filepath.Join("/root", name)
		require.Equal(t, "/root", filepath.Dir(joined))
		require.Equal(t, name, filepath.Base(joined))
		require.Equal(t, "/"+name, filepath.Clean("/x/../"+name))
		require.LessOrEqual(t, len(name), maxPathElement)
		require.NotContains(t, name, `\`)
		require.Equal(t, name, strings.Join(strings.FieldsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }), "?"))
		require.NoError(t, ValidatePathNoBacksteps(joined))
	})
}

// FuzzPodVolumeDir holds that no two volumes share a directory: pod, plugin and volume can be read from the path again.
// A pod's name that begins another's must not matter.
func FuzzPodVolumeDir(f *testing.F) {
	f.Add("p1", "example.com/a", "v")
	f.Add("p10", "example.com/a.b", "volumes")
	f.Add("7f3c", "kubernetes.io/host-path", "x (deleted)")
	f.Add("..", "a/b", "a/b")
	f.Add("a b", "kubernetes.io/a_b", `\040`)
	f.Add("p", "a/b~c", "..data")
	host, err := NewHost(HostOptions{RootDir: "/var/lib/agent", NodeName: "node"})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, uid, plugin, name string) {
		if CheckPathElement(uid) != nil || ValidatePluginName(plugin) != nil || CheckPathElement(name) != nil {
			return
		}
		dir := host.GetPodVolumeDir(types.UID(uid), plugin, name)
		require.Equal(t, dir, host.GetPodVolumeDir(types.UID(uid), EscapeQualifiedName(plugin), name))
		rest, ok := strings.CutPrefix(dir, host.GetPodsDir()+"/")
		require.True(t, ok)
		elements := strings.Split(rest, "/")
		require.Len(t, elements, 4)
		require.Equal(t, []string{uid, "volumes", plugin, name},
			[]string{elements[0], elements[1], UnescapeQualifiedName(elements[2]), elements[3]})
		require.NotContains(t, []string{dir, filepath.Dir(dir)}, host.GetPodVolumeDeviceDir(types.UID(uid), plugin))
		require.NotContains(t, []string{dir, filepath.Dir(dir)}, host.GetPodPluginDir(types.UID(uid), plugin))

		own := host.GetPluginDir(plugin)
		require.Equal(t, own, host.GetPluginDir(EscapeQualifiedName(plugin)))
		require.Equal(t, "/var/lib/agent/plugins/"+plugin, own)
	})
}

// FuzzMountOptions holds that options which were joined and checked are each one option, and that no error holds what
// stands behind an option's "=". Options are parted by bars.
func FuzzMountOptions(f *testing.F) {
	f.Add("ro|hard|ro", "rw", "")
	f.Add(" ro |a b|\t|\n", "vers=4.2|vers=4.2", "x")
	f.Add("a,b||=|==", "password=secret,uid=0", "a,b")
	f.Add("a\x00b|\x7f|\xff", "ro\n", "\n")
	f.Fuzz(func(t *testing.T, user, system, secret string) {
		const marker = "hunter2-QZX"
		userOptions, systemOptions := strings.Split(user, "|"), append(strings.Split(system, "|"), "password="+marker+secret)
		joined := JoinMountOptions(userOptions, systemOptions)
		require.Equal(t, joined, JoinMountOptions(joined, nil))
		require.Equal(t, joined, JoinMountOptions(userOptions, joined), "what is there already changes nothing")
		seen := map[string]bool{}
		for _, option := range joined {
			require.NotEmpty(t, option)
			require.False(t, seen[option], "%q is there twice", option)
			seen[option] = true
		}
		if err := CheckMountOptions(joined); err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			if !strings.Contains(user+system, marker) {
				require.NotContains(t, err.Error(), marker)
			}
			return
		}
		for _, option := range joined {
			require.False(t, strings.ContainsAny(option, ",\n\r\x00"), "%q", option)
		}
	})
}
