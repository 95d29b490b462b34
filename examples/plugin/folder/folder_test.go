package folder

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func TestConformance(t *testing.T) {
	mounttest.RequireMounts(t)
	base := t.TempDir()
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return &Plugin{Base: base, Mounter: mount.New(mount.Options{})} },
		Require:   volume.CapProvision | volume.CapDelete | volume.CapDeviceMount,
		Shared:    true, Lifetime: volumetest.LifetimeOfStorage,
	})
}

// A folder that is gone from the share is reported for a pod that has it.
func TestAFolderThatIsGoneIsReported(t *testing.T) {
	base := t.TempDir()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	p := &Plugin{Base: base, Mounter: fake.NewMounter(fake.MounterOptions{})}
	if err := p.Init(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	spec := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "pv-1"},
		}},
	}, false)
	m, err := p.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "42"}})
	if err != nil {
		t.Fatal(err)
	}
	health := func() []volume.HealthCondition {
		found, err := m.(volume.HealthReporter).GetHealth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := health(); len(found) != 1 || found[0].Reason != "FolderGone" {
		t.Errorf("without the folder: %v", found)
	}
	if err := os.Mkdir(filepath.Join(base, "pv-1"), 0o777); err != nil {
		t.Fatal(err)
	}
	if found := health(); len(found) != 0 {
		t.Errorf("with the folder: %v", found)
	}
}
