package volumetest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

const ramName = "example.com/ram" // its csi driver is ram.example.com

// ramPlugin is a whole plugin: each volume is a tmpfs that begins and ends with its pod. It keeps nothing in memory
// about volumes, so that a new value goes on where an old one was killed.
type ramPlugin struct {
	mounter mount.Interface
	host    volume.VolumeHost
}

func (p *ramPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *ramPlugin) GetPluginName() string { return ramName }

// SpecKinds lets the registry find the plugin without asking it: by the driver, among the volumes of pods.
func (p *ramPlugin) SpecKinds() []volume.SpecKind {
	kinds := volume.DriverKinds(ramName)
	for i := range kinds {
		kinds[i].Scope = volume.PodScope
	}
	return kinds
}

func (p *ramPlugin) CanSupport(spec *volume.Spec) bool { return p.check(spec) == nil }

func (p *ramPlugin) check(spec *volume.Spec) error {
	if driver, ok := spec.Driver(); !ok || driver.PluginName != ramName || spec.PersistentVolume != nil {
		return fmt.Errorf("volume %q is not a pod's own of %s: %w", spec.Name(), ramName, volume.ErrInvalid)
	}
	return nil
}

func (p *ramPlugin) GetVolumeName(spec *volume.Spec) (string, error) {
	return spec.Name(), p.check(spec)
}

func (p *ramPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if err := p.check(spec); err != nil {
		return nil, err
	}
	v, err := p.volume(spec.Name(), pod.UID)
	if driver, _ := spec.Driver(); err == nil {
		v.readOnly = driver.ReadOnly
	}
	return v, err
}

func (p *ramPlugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	return p.volume(name, podUID)
}

// volume checks the names, which come from users and become elements of a path.
func (p *ramPlugin) volume(name string, podUID types.UID) (*ramVolume, error) {
	if err := errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID))); err != nil {
		return nil, err
	}
	return &ramVolume{mounter: p.mounter, path: p.host.GetPodVolumeDir(podUID, ramName, name)}, nil
}

// ramVolume is the mounter and the unmounter of one volume of one pod.
type ramVolume struct {
	volume.MetricsNil // volume.Dir measures what is mounted on the machine

	mounter  mount.Interface
	path     string
	readOnly bool
}

func (v *ramVolume) GetPath() string { return v.path }

func (v *ramVolume) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: v.readOnly} }

func (v *ramVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.path, args)
}

func (v *ramVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	mounted, err := v.mounter.IsMountPoint(ctx, dir)
	if mounted || (err != nil && !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	options := []string{"nosuid", "nodev", "size=64m"}
	if v.readOnly {
		options = append(options, "ro")
	}
	return v.mounter.Mount(ctx, mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: options})
}

func (v *ramVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.path) }

func (v *ramVolume) TearDownAt(ctx context.Context, dir string) error {
	return mount.UnmountPath(ctx, v.mounter, dir, mount.UnmountOptions{})
}

// testConformance is all of a plugin's conformance test; in your own package it is called TestConformance.
func testConformance(t *testing.T) {
	world := fake.NewMounter(fake.MounterOptions{})
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return &ramPlugin{mounter: volumetest.Unsteady(world)} },
		NewSpec: func(testing.TB) *volume.Spec {
			return volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{
				CSI: &v1.CSIVolumeSource{Driver: "ram.example.com"},
			}})
		},
		World: world,
	})
}

// A small plugin and its conformance test, which needs neither root nor a mount of the machine's own.
func ExampleRun() {
	_ = testConformance // go test runs it, under the name of TestConformance
}
