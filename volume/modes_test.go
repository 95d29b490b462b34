package volume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAccessModes(t *testing.T) {
	have := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
	assert.True(t, ContainsAccessMode(have, v1.ReadOnlyMany))
	assert.False(t, ContainsAccessMode(have, v1.ReadWriteMany))
	assert.True(t, ContainsAllAccessModes(have, nil))
	assert.True(t, ContainsAllAccessModes(have, have))
	assert.False(t, ContainsAllAccessModes(have, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}))
	assert.False(t, ContainsAllAccessModes(nil, have))
}

func withModes(modes ...v1.PersistentVolumeAccessMode) *Spec {
	pv := persistent(v1.PersistentVolumeSource{})
	pv.Spec.AccessModes = modes
	return NewSpecFromPersistentVolume(pv, false)
}

func inline(source v1.VolumeSource) *Spec {
	return NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: source})
}

func TestIsMultiAttachAllowed(t *testing.T) {
	for name, tc := range map[string]struct {
		spec *Spec
		want bool
	}{
		"nil":                {nil, true},
		"empty":              {&Spec{}, true},
		"inline":             {inline(v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}), true},
		"inline Azure disk":  {inline(v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{}}), false},
		"inline Cinder":      {inline(v1.VolumeSource{Cinder: &v1.CinderVolumeSource{}}), false},
		"says nothing":       {withModes(), true},
		"once":               {withModes(v1.ReadWriteOnce), false},
		"once per pod":       {withModes(v1.ReadWriteOncePod), false},
		"many":               {withModes(v1.ReadWriteOnce, v1.ReadWriteMany), true},
		"read-only for many": {withModes(v1.ReadWriteOnce, v1.ReadOnlyMany), true},
	} {
		assert.Equal(t, tc.want, IsMultiAttachAllowed(tc.spec), name)
	}
}

func withVolumeMode(mode *v1.PersistentVolumeMode) *Spec {
	pv := persistent(v1.PersistentVolumeSource{})
	pv.Spec.VolumeMode = mode
	return NewSpecFromPersistentVolume(pv, false)
}

func TestVolumeMode(t *testing.T) {
	for name, spec := range map[string]*Spec{
		"nil":        nil,
		"inline":     inline(v1.VolumeSource{}),
		"unset":      withVolumeMode(nil),
		"filesystem": withVolumeMode(ptr(v1.PersistentVolumeFilesystem)),
	} {
		mode, err := GetVolumeMode(spec)
		require.NoError(t, err, name)
		assert.Equal(t, v1.PersistentVolumeFilesystem, mode, name)
		is, err := CheckVolumeModeFilesystem(spec)
		require.NoError(t, err, name)
		assert.True(t, is, name)
	}
	block := withVolumeMode(ptr(v1.PersistentVolumeBlock))
	mode, err := GetVolumeMode(block)
	require.NoError(t, err)
	assert.Equal(t, v1.PersistentVolumeBlock, mode)
	is, err := CheckVolumeModeFilesystem(block)
	require.NoError(t, err)
	assert.False(t, is)

	wrong := withVolumeMode(ptr(v1.PersistentVolumeMode("Tape")))
	_, err = GetVolumeMode(wrong)
	require.ErrorIs(t, err, ErrInvalid)
	is, err = CheckVolumeModeFilesystem(wrong)
	require.ErrorIs(t, err, ErrInvalid)
	assert.False(t, is)
}

func TestCheckPersistentVolumeClaimModeBlock(t *testing.T) {
	claim := func(mode *v1.PersistentVolumeMode) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{VolumeMode: mode}}
	}
	assert.False(t, CheckPersistentVolumeClaimModeBlock(nil))
	assert.False(t, CheckPersistentVolumeClaimModeBlock(claim(nil)))
	assert.False(t, CheckPersistentVolumeClaimModeBlock(claim(ptr(v1.PersistentVolumeFilesystem))))
	assert.True(t, CheckPersistentVolumeClaimModeBlock(claim(ptr(v1.PersistentVolumeBlock))))
}

func TestIsLocalEphemeralVolume(t *testing.T) {
	assert.False(t, IsLocalEphemeralVolume(nil))
	for name, tc := range map[string]struct {
		source v1.VolumeSource
		want   bool
	}{
		"nothing":            {v1.VolumeSource{}, false},
		"emptyDir":           {v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, true},
		"emptyDir in memory": {v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}, false},
		"configMap":          {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, true},
		"gitRepo":            {v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{}}, true},
		"secret":             {v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, false},
		"projected":          {v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}, false},
	} {
		assert.Equal(t, tc.want, IsLocalEphemeralVolume(&v1.Volume{VolumeSource: tc.source}), name)
	}
}

func TestRequestedBytes(t *testing.T) {
	claim := func(size string) *v1.PersistentVolumeClaim {
		c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
		c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
		return c
	}
	for size, want := range map[string]int64{
		"1": 1, "1Gi": 1 << 30, "1.5Ki": 1536, "100m": 1, "1G": 1e9, "9223372036854775807": 1<<63 - 1,
	} {
		got, err := RequestedBytes(claim(size))
		require.NoError(t, err, size)
		assert.Equal(t, want, got, size)
	}
	for size, want := range map[string]error{
		"0": ErrInvalid, "-1Gi": ErrInvalid, "9223372036854775808": ErrInfeasible, "1e30": ErrInfeasible,
	} {
		_, err := RequestedBytes(claim(size))
		require.ErrorIs(t, err, want, size)
		require.ErrorContains(t, err, `"default/data"`)
	}
	for _, c := range []*v1.PersistentVolumeClaim{nil, {}} {
		_, err := RequestedBytes(c)
		require.ErrorIs(t, err, ErrInvalid)
	}
	assert.Equal(t, "data", GetPersistentVolumeClaimQualifiedName(
		&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}))
}
