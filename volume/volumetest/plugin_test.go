package volumetest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// fakeSpec returns a PersistentVolume of the fake plugin, of storage of its own.
func fakeSpec(testing.TB) *volume.Spec {
	name := "pv-" + nextID()
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: "fake.example.com", VolumeHandle: name},
		}},
	}, false)
}

// inlineSpec returns a volume of a pod's own.
func inlineSpec(testing.TB) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{
		Name:         "inline-" + nextID(),
		VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}},
	})
}

// fakeConfig tests the fake plugin over a mounter, with storage that all its values share.
func fakeConfig(mounter mount.Interface, without volume.Capabilities) Config {
	backend := fake.NewBackend()
	return Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			return fake.NewPlugin(fake.PluginOptions{Mounter: mounter, Backend: backend, Without: without})
		},
		NewSpec: fakeSpec,
		Shared:  true,
	}
}

func TestFakePluginOverTheKernelKeepsTheContract(t *testing.T) {
	mounttest.RequireMounts(t)
	config := fakeConfig(mount.New(mount.Options{}), 0)
	config.Require = volume.AllCapabilities
	Run(t, config)
}
