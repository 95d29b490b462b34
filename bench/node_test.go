package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	k8svolume "k8s.io/kubernetes/pkg/volume"
	k8svolumetest "k8s.io/kubernetes/pkg/volume/testing"

	"github.com/volumekit/volumekit/volume"
)

// This file has the pods of a node, and a plugin for each side whose calls return at once and do nothing.

// nodePod returns pod i with vols volumes of its own, which its container mounts.
func nodePod(i, vols int) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace = fmt.Sprintf("pod-%d", i), "default"
	p.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
	c := v1.Container{Name: "c"}
	for j := range vols {
		name := fmt.Sprintf("vol-%d-%d", i, j)
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{
			Name: name, VolumeSource: v1.VolumeSource{RBD: &v1.RBDVolumeSource{RBDImage: name}},
		})
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

const instantName = "bench/instant"

// instantK8s is a plugin of Kubernetes whose volumes are attached and staged.
type instantK8s struct{ k8svolume.MetricsNil }

func (*instantK8s) Init(k8svolume.VolumeHost) error                 { return nil }
func (*instantK8s) GetPluginName() string                           { return instantName }
func (*instantK8s) GetVolumeName(s *k8svolume.Spec) (string, error) { return s.Name(), nil }
func (*instantK8s) CanSupport(s *k8svolume.Spec) bool {
	return s.Volume != nil && s.Volume.RBD != nil
}
func (*instantK8s) RequiresRemount(*k8svolume.Spec) bool                      { return false }
func (*instantK8s) SupportsMountOption() bool                                 { return false }
func (*instantK8s) SupportsSELinuxContextMount(*k8svolume.Spec) (bool, error) { return false, nil }
func (*instantK8s) ConstructVolumeSpec(string, string) (k8svolume.ReconstructedVolume, error) {
	return k8svolume.ReconstructedVolume{}, errors.ErrUnsupported
}
func (p *instantK8s) NewMounter(*k8svolume.Spec, *v1.Pod) (k8svolume.Mounter, error) { return p, nil }
func (p *instantK8s) NewUnmounter(string, types.UID) (k8svolume.Unmounter, error)    { return p, nil }
func (p *instantK8s) NewDeviceMounter() (k8svolume.DeviceMounter, error)             { return p, nil }
func (p *instantK8s) NewDeviceUnmounter() (k8svolume.DeviceUnmounter, error)         { return p, nil }
func (p *instantK8s) NewAttacher() (k8svolume.Attacher, error)                       { return p, nil }
func (p *instantK8s) NewDetacher() (k8svolume.Detacher, error)                       { return p, nil }
func (*instantK8s) Attach(*k8svolume.Spec, types.NodeName) (string, error)           { return "/dev/x", nil }
func (*instantK8s) Detach(string, types.NodeName) error                              { return nil }
func (*instantK8s) GetDeviceMountPath(*k8svolume.Spec) (string, error)               { return "/nowhere", nil }
func (*instantK8s) UnmountDevice(string) error                                       { return nil }
func (*instantK8s) MountDevice(*k8svolume.Spec, string, string, k8svolume.DeviceMounterArgs) error {
	return nil
}
func (*instantK8s) WaitForAttach(_ *k8svolume.Spec, path string, _ *v1.Pod, _ time.Duration) (string, error) {
	return path, nil
}
func (*instantK8s) VolumesAreAttached([]*k8svolume.Spec, types.NodeName) (map[*k8svolume.Spec]bool, error) {
	return nil, nil
}
func (*instantK8s) GetDeviceMountRefs(string) ([]string, error)  { return nil, nil }
func (*instantK8s) CanDeviceMount(*k8svolume.Spec) (bool, error) { return true, nil }
func (*instantK8s) CanAttach(*k8svolume.Spec) (bool, error)      { return true, nil }
func (*instantK8s) VerifyExhaustedResource(*k8svolume.Spec) bool { return false }
func (*instantK8s) GetPath() string                              { return "/nowhere" }
func (*instantK8s) SetUp(k8svolume.MounterArgs) error            { return nil }
func (*instantK8s) SetUpAt(string, k8svolume.MounterArgs) error  { return nil }
func (*instantK8s) GetAttributes() k8svolume.Attributes          { return k8svolume.Attributes{} }
func (*instantK8s) TearDown() error                              { return nil }
func (*instantK8s) TearDownAt(string) error                      { return nil }

func k8sPlugins(tb testing.TB, of ...k8svolume.VolumePlugin) *k8svolume.VolumePluginMgr {
	plugins := &k8svolume.VolumePluginMgr{}
	host := k8svolumetest.NewFakeKubeletVolumeHost(nil, "/nowhere", nil, nil)
	must(tb, plugins.InitPlugins(of, nil, host))
	return plugins
}

// instantOurs is the same for us.
type instantOurs struct{ volume.MetricsNil }

func (*instantOurs) Init(context.Context, volume.VolumeHost) error { return nil }
func (*instantOurs) GetPluginName() string                         { return instantName }
func (*instantOurs) GetVolumeName(s *volume.Spec) (string, error)  { return s.Name(), nil }
func (*instantOurs) CanSupport(s *volume.Spec) bool {
	return s.Volume != nil && s.Volume.RBD != nil
}
func (*instantOurs) RequiresRemount(*volume.Spec) bool                      { return false }
func (*instantOurs) SupportsMountOption() bool                              { return false }
func (*instantOurs) SupportsSELinuxContextMount(*volume.Spec) (bool, error) { return false, nil }
func (p *instantOurs) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return p, nil
}
func (p *instantOurs) NewUnmounter(string, types.UID) (volume.Unmounter, error) { return p, nil }
func (p *instantOurs) NewDeviceMounter() (volume.DeviceMounter, error)          { return p, nil }
func (p *instantOurs) NewDeviceUnmounter() (volume.DeviceUnmounter, error)      { return p, nil }
func (p *instantOurs) NewAttacher() (volume.Attacher, error)                    { return p, nil }
func (p *instantOurs) NewDetacher() (volume.Detacher, error)                    { return p, nil }
func (*instantOurs) Attach(context.Context, *volume.Spec, types.NodeName) (string, error) {
	return "/dev/x", nil
}
func (*instantOurs) Detach(context.Context, string, types.NodeName) error { return nil }
func (*instantOurs) GetDeviceMountPath(*volume.Spec) (string, error)      { return "/nowhere", nil }
func (*instantOurs) UnmountDevice(context.Context, string) error          { return nil }
func (*instantOurs) MountDevice(context.Context, *volume.Spec, string, string, volume.DeviceMounterArgs) error {
	return nil
}
func (*instantOurs) WaitForAttach(_ context.Context, _ *volume.Spec, path string, _ *v1.Pod) (string, error) {
	return path, nil
}
func (*instantOurs) VolumesAreAttached(context.Context, map[v1.UniqueVolumeName]*volume.Spec, types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	return nil, nil
}
func (*instantOurs) CanDeviceMount(*volume.Spec) (bool, error) { return true, nil }
func (*instantOurs) CanAttach(*volume.Spec) (bool, error)      { return true, nil }
func (*instantOurs) GetDeviceMountRefs(context.Context, string) ([]string, error) {
	return nil, nil
}
func (*instantOurs) GetPath() string                                           { return "/nowhere" }
func (*instantOurs) GetAttributes() volume.Attributes                          { return volume.Attributes{} }
func (*instantOurs) SetUp(context.Context, volume.MounterArgs) error           { return nil }
func (*instantOurs) SetUpAt(context.Context, string, volume.MounterArgs) error { return nil }
func (*instantOurs) TearDown(context.Context) error                            { return nil }
func (*instantOurs) TearDownAt(context.Context, string) error                  { return nil }

func ourPlugins(tb testing.TB, of ...volume.VolumePlugin) *volume.VolumePluginMgr {
	host, err := volume.NewHost(volume.HostOptions{RootDir: tb.TempDir(), NodeName: "node"})
	must(tb, err)
	plugins := volume.NewVolumePluginMgr(host)
	must(tb, plugins.InitPlugins(tb.Context(), of...))
	return plugins
}
