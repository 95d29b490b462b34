package volume

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

// TestResolveAnswersAsTheSingleQuestionsDo holds for a plugin that can do everything, for one that declines each thing,
// and for one without abilities.
func TestResolveAnswersAsTheSingleQuestionsDo(t *testing.T) {
	spec := NewSpecFromVolume(nfsVolume("data"))
	for name, plugin := range map[string]VolumePlugin{
		"everything": newAble("example.com/a"),
		"nothing":    &plain{name: "example.com/a", serves: always},
		"no attach":  without(CapAttach),
		"no staging": without(CapDeviceMount),
		"no remount": without(CapRemount),
		"no context": without(CapSELinux),
		"no growing": without(CapNodeExpand),
		"declines": func() VolumePlugin {
			p := newAble("example.com/a")
			p.canAttach, p.canMount, p.remount = no, no, false
			return p
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			m := registry(t, plugin)
			r, err := m.Resolve(spec)
			require.NoError(t, err)
			assert.Equal(t, "example.com/a", r.PluginName)
			for _, question := range []struct {
				got bool
				ask func(*Spec) (bool, error)
			}{
				{r.Attachable, m.IsAttachable}, {r.DeviceMountable, m.IsDeviceMountable},
			} {
				want, err := question.ask(spec)
				require.NoError(t, err)
				assert.Equal(t, want, question.got)
			}
			assert.Equal(t, !slices.Contains([]string{"nothing", "no remount", "declines"}, name), r.RequiresRemount)
			assert.Equal(t, !slices.Contains([]string{"nothing", "no context"}, name), r.SELinuxMount)
			_, err = m.FindNodeExpandablePluginBySpec(spec)
			assert.Equal(t, err == nil, r.NodeExpandable)
			want, err := m.UniqueVolumeName("uid", spec)
			require.NoError(t, err)
			unique, err := r.UniqueVolumeName("uid")
			require.NoError(t, err)
			assert.Equal(t, want, unique)
		})
	}
}

func without(c Capabilities) VolumePlugin {
	p := newAble("example.com/a")
	p.capabilities &^= c
	return p
}

func TestResolveReportsWhatThePluginDoes(t *testing.T) {
	p := newAble("example.com/a")
	m := registry(t, p)
	spec := NewSpecFromVolume(nfsVolume("data"))
	for call, answer := range map[string]*func(*Spec) (bool, error){"CanAttach": &p.canAttach, "CanDeviceMount": &p.canMount} {
		*answer = func(*Spec) (bool, error) { panic("no words") }
		_, err := m.Resolve(spec)
		var panicked *PanicError
		require.ErrorAs(t, err, &panicked)
		assert.Equal(t, call, panicked.Call)
		*answer = yes
	}
	_, err := m.Resolve(nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = registry(t).Resolve(spec)
	require.ErrorIs(t, err, ErrNoPlugin)
}

// TestResolveAllocatesNothing: it is asked for each volume of each pod.
func TestResolveAllocatesNothing(t *testing.T) {
	m := registry(t, newAble("example.com/a"))
	spec := NewSpecFromVolume(&v1.Volume{Name: "data"})
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = m.Resolve(spec) }))
}
