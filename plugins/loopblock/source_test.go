package loopblock

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func newVolume(handle string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: Driver, VolumeHandle: handle},
			},
		},
	}
}

func specOf(pv *v1.PersistentVolume) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func TestDriverIsTheName(t *testing.T) {
	assert.Equal(t, Driver, volume.DriverOfPluginName(Name))
	assert.Equal(t, Name, volume.PluginNameOfDriver(Driver))
}

func TestCanSupport(t *testing.T) {
	p := New(Options{})
	assert.True(t, p.CanSupport(specOf(newVolume("a"))))
	other := newVolume("a")
	other.Spec.CSI.Driver = "other.volumekit.io"
	flex := newVolume("a")
	flex.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{Driver: Name}}
	inline := &v1.Volume{Name: "a", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: Driver}}}
	for name, spec := range map[string]*volume.Spec{
		"nil": nil, "empty": {}, "another driver": specOf(other), "flexVolume": specOf(flex),
		"inline": volume.NewSpecFromVolume(inline),
	} {
		assert.False(t, p.CanSupport(spec), name)
		require.ErrorIs(t, p.ExplainSupport(spec), volume.ErrInvalid, name)
		_, err := p.GetVolumeName(spec)
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
}

func TestSourceRefuses(t *testing.T) {
	for _, handle := range []string{"", ".", "..", "../a", "a/b", `a\b`, "a\nb", strings.Repeat("x", 241)} {
		_, err := sourceOf(specOf(newVolume(handle)))
		require.ErrorIs(t, err, volume.ErrInvalid, "handle %q", handle)
	}
	_, err := sourceOf(specOf(newVolume(strings.Repeat("x", 240))))
	require.NoError(t, err, "the longest")
	block := v1.PersistentVolumeBlock
	for name, c := range map[string]struct {
		change func(*v1.PersistentVolume)
		want   error
	}{
		"attributes": {func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = map[string]string{"baseDir": "/etc"} }, volume.ErrInvalid},
		"filesystem": {func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = "ntfs" }, volume.ErrInvalid},
		"block mode": {func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode, pv.Spec.CSI.FSType = &block, "ext4" }, volume.ErrInvalid},
		"bind":       {func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"bind"} }, volume.ErrInvalid},
		"two in one": {func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"noatime,suid"} }, volume.ErrInvalid},
	} {
		pv := newVolume("a")
		c.change(pv)
		_, err := sourceOf(specOf(pv))
		require.ErrorIs(t, err, c.want, name)
	}
}

func TestSourceReadOnly(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(*volume.Spec)
		readOnly, pod bool
	}{
		"writable":      {func(*volume.Spec) {}, false, false},
		"pod's claim":   {func(s *volume.Spec) { s.ReadOnly = true }, false, true},
		"source":        {func(s *volume.Spec) { s.PersistentVolume.Spec.CSI.ReadOnly = true }, true, true},
		"option":        {func(s *volume.Spec) { s.PersistentVolume.Spec.MountOptions = []string{"ro"} }, true, true},
		"modes":         {modes(v1.ReadOnlyMany), true, true},
		"mixed modes":   {modes(v1.ReadOnlyMany, v1.ReadWriteOnce), false, false},
		"no mode given": {modes(), false, false},
	} {
		spec := specOf(newVolume("a"))
		c.change(spec)
		src, err := sourceOf(spec)
		require.NoError(t, err, name)
		assert.Equal(t, c.readOnly, src.readOnly, name)
		assert.Equal(t, c.pod, src.podReadOnly, name)
	}
}

func modes(modes ...v1.PersistentVolumeAccessMode) func(*volume.Spec) {
	return func(s *volume.Spec) { s.PersistentVolume.Spec.AccessModes = modes }
}

func TestOptions(t *testing.T) {
	plain := source{}
	assert.Equal(t, []string{"nosuid", "nodev"}, plain.stageOptions())
	assert.Equal(t, []string{"bind", "nosuid", "nodev"}, plain.bindOptions())
	readOnly := source{readOnly: true, podReadOnly: true, options: []string{"rw", "noexec", "noatime"}}
	assert.Equal(t, []string{"rw", "noexec", "noatime", "nosuid", "nodev", "ro"}, readOnly.stageOptions())
	assert.Equal(t, []string{"bind", "nosuid", "nodev", "noexec", "ro"}, readOnly.bindOptions())
	trusted := source{options: []string{"suid", "dev"}}
	assert.Equal(t, []string{"suid", "dev"}, trusted.stageOptions())
	assert.Equal(t, []string{"bind"}, trusted.bindOptions())
}

func TestNamesOfPods(t *testing.T) {
	p := New(Options{})
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/r", NodeName: "n"})
	require.NoError(t, err)
	require.NoError(t, p.Init(t.Context(), host))
	_, err = p.NewUnmounter("../pv", "uid")
	require.ErrorIs(t, err, volume.ErrInvalid)
	_, err = p.NewUnmounter("pv", "../../uid")
	require.ErrorIs(t, err, volume.ErrInvalid)
	u, err := p.NewUnmounter("pv", "uid")
	require.NoError(t, err)
	assert.Equal(t, "/r/pods/uid/volumes/volumekit.io~loop-block/pv", u.GetPath())
}
