package volume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

func persistent(source v1.PersistentVolumeSource) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec:       v1.PersistentVolumeSpec{PersistentVolumeSource: source},
	}
}

func TestSpecName(t *testing.T) {
	var none *Spec
	assert.Empty(t, none.Name())
	assert.Empty(t, (&Spec{}).Name())
	assert.Equal(t, "data", NewSpecFromVolume(&v1.Volume{Name: "data"}).Name())
	assert.Equal(t, "pv-1", NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{}), false).Name())
}

func TestSpecDriver(t *testing.T) {
	parameters := map[string]string{"size": "1Gi"}
	for name, tc := range map[string]struct {
		spec *Spec
		want Driver
		ok   bool
	}{
		"nil":          {nil, Driver{}, false},
		"empty":        {&Spec{}, Driver{}, false},
		"other source": {NewSpecFromVolume(nfsVolume("data")), Driver{}, false},
		"inline csi, all": {
			NewSpecFromVolume(&v1.Volume{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
				Driver: "ram.example.com", ReadOnly: ptr(true), FSType: ptr("ext4"), VolumeAttributes: parameters,
				NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"},
			}}}),
			Driver{PluginName: "example.com/ram", FSType: "ext4", ReadOnly: true, Parameters: parameters, SecretName: "key"},
			true,
		},
		"inline csi, least": {
			NewSpecFromVolume(&v1.Volume{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "ram.example.com"}}}),
			Driver{PluginName: "example.com/ram"},
			true,
		},
		"inline flexVolume": {
			NewSpecFromVolume(&v1.Volume{VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{
				Driver: "example.com/ram", FSType: "xfs", ReadOnly: true, Options: parameters,
				SecretRef: &v1.LocalObjectReference{Name: "key"},
			}}}),
			Driver{PluginName: "example.com/ram", FSType: "xfs", ReadOnly: true, Parameters: parameters, SecretName: "key"},
			true,
		},
		"persistent csi": {
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: "loop-block.volumekit.io", VolumeHandle: "7", FSType: "ext4", VolumeAttributes: parameters,
				NodePublishSecretRef: &v1.SecretReference{Name: "key", Namespace: "keys"},
			}}), false),
			Driver{PluginName: "volumekit.io/loop-block", Handle: "7", FSType: "ext4", Parameters: parameters,
				SecretName: "key", SecretNamespace: "keys"},
			true,
		},
		"read-only by its source": {
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: "a.b", ReadOnly: true}}), false),
			Driver{PluginName: "b/a", ReadOnly: true},
			true,
		},
		"read-only by the pod": {
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: "a.b"}}), true),
			Driver{PluginName: "b/a", ReadOnly: true},
			true,
		},
		"persistent flexVolume": {
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{
				Driver: "example.com/ram", FSType: "xfs", Options: parameters,
				SecretRef: &v1.SecretReference{Name: "key", Namespace: "keys"},
			}}), true),
			Driver{PluginName: "example.com/ram", FSType: "xfs", ReadOnly: true, Parameters: parameters,
				SecretName: "key", SecretNamespace: "keys"},
			true,
		},
		"persistent, other source, read-only": {
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{}), true), Driver{}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := tc.spec.Driver()
			assert.Equal(t, tc.ok, ok)
			if ok {
				assert.Equal(t, tc.want, got)
			}
		})
	}
}

func TestSpecDriverCopiesParameters(t *testing.T) {
	vol := &v1.Volume{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: "ram.example.com", VolumeAttributes: map[string]string{"size": "1Gi"}}}}
	d, _ := NewSpecFromVolume(vol).Driver()
	d.Parameters["size"] = "2Gi"
	assert.Equal(t, "1Gi", vol.CSI.VolumeAttributes["size"])
}

func TestPluginNameOfDriver(t *testing.T) {
	assert.Equal(t, "example.com/foo", PluginNameOfDriver("foo.example.com"))
	assert.Equal(t, "foo.example.com", DriverOfPluginName("example.com/foo"))
	assert.Equal(t, "nodot", PluginNameOfDriver("nodot"))
	assert.Equal(t, "noslash", DriverOfPluginName("noslash"))
}
