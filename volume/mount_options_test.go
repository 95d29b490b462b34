package volume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

func withOptions(annotation *string, options ...string) *Spec {
	pv := persistent(v1.PersistentVolumeSource{})
	pv.Spec.MountOptions = options
	if annotation != nil {
		pv.Annotations = map[string]string{v1.MountOptionAnnotation: *annotation}
	}
	return NewSpecFromPersistentVolume(pv, false)
}

func TestMountOptionFromSpec(t *testing.T) {
	for name, tc := range map[string]struct {
		spec   *Spec
		plugin []string
		want   []string
	}{
		"nil":                     {nil, []string{"ro"}, []string{"ro"}},
		"no claim":                {NewSpecFromVolume(nfsVolume("data")), []string{"ro"}, []string{"ro"}},
		"nothing":                 {withOptions(nil), nil, nil},
		"order is kept":           {withOptions(nil, "vers=4", "hard", "async"), []string{"ro"}, []string{"vers=4", "hard", "async", "ro"}},
		"plugin's come last":      {withOptions(nil, "ro", "hard"), []string{"ro"}, []string{"hard", "ro"}},
		"annotation replaces":     {withOptions(ptr("soft, vers=3 ,,soft"), "hard"), []string{"ro"}, []string{"vers=3", "soft", "ro"}},
		"annotation that is ''":   {withOptions(ptr(""), "hard"), []string{"ro"}, []string{"ro"}},
		"contradictions are kept": {withOptions(nil, "rw"), []string{"ro"}, []string{"rw", "ro"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, MountOptionFromSpec(tc.spec, tc.plugin...))
		})
	}
}

func TestJoinMountOptionsLeavesItsArgumentsAlone(t *testing.T) {
	user, system := []string{"b", "a", "b"}, []string{"c", "a"}
	assert.Equal(t, []string{"b", "c", "a"}, JoinMountOptions(user, system))
	assert.Equal(t, []string{"b", "a", "b"}, user)
	assert.Equal(t, []string{"c", "a"}, system)
}

func TestCheckMountOptions(t *testing.T) {
	require.NoError(t, CheckMountOptions(nil))
	require.NoError(t, CheckMountOptions([]string{"ro", "vers=4.2", "context=\"system_u:object_r:x:s0\""}))
	for _, bad := range []string{"", "ro,suid", "a\nb", "a\x00", "\x7f", "password=hunter2,suid", "password=hunter2\n"} {
		err := CheckMountOptions([]string{"ro", bad})
		require.ErrorIs(t, err, ErrInvalid, "%q", bad)
		require.ErrorContains(t, err, "mount option 2")
		assert.NotContains(t, err.Error(), "hunter2")
	}
}
