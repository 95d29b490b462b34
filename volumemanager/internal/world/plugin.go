package world

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// PluginName is the name of the world's plugin.
const PluginName = "example.com/simulated"

// plugin is the world's plugin as one process sees it.
type plugin struct {
	process *Process
	host    volume.VolumeHost
}

var (
	_ volume.AttachableVolumePlugin      = (*plugin)(nil)
	_ volume.RemountableVolumePlugin     = (*plugin)(nil)
	_ volume.ReusableVolumePlugin        = (*plugin)(nil)
	_ volume.MountingVolumePlugin        = (*plugin)(nil)
	_ volume.Attacher                    = attacher{}
	_ volume.Detacher                    = attacher{}
	_ volume.Mounter                     = (*mounter)(nil)
	_ volume.Unmounter                   = (*mounter)(nil)
	_ volume.VolumePlugin                = (*plugin)(nil)
	_ volume.DeviceMountableVolumePlugin = (*plugin)(nil)
	_ volume.NodeExpandableVolumePlugin  = (*plugin)(nil)
)

// Init implements volume.VolumePlugin.
func (p *plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

// GetPluginName implements volume.VolumePlugin.
func (p *plugin) GetPluginName() string { return PluginName }

// GetVolumeName implements volume.VolumePlugin.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) { return storageOf(spec), nil }

// PublicKeys implements volume.PublicKeyDeclarer.
func (p *plugin) PublicKeys() []string { return []string{storageKey} }

// CanSupport implements volume.VolumePlugin.
func (p *plugin) CanSupport(spec *volume.Spec) bool {
	_, ok := p.process.world.volumes[spec.Name()]
	return ok
}

// CanAttach implements volume.AttachableVolumePlugin.
func (p *plugin) CanAttach(spec *volume.Spec) (bool, error) { return p.of(spec).Attachable, nil }

// CanDeviceMount implements volume.DeviceMountableVolumePlugin.
func (p *plugin) CanDeviceMount(spec *volume.Spec) (bool, error) { return p.of(spec).Stageable, nil }

// RequiresRemount implements volume.RemountableVolumePlugin.
func (p *plugin) RequiresRemount(spec *volume.Spec) bool { return p.of(spec).Remountable }

// CanReuse implements volume.ReusableVolumePlugin.
func (p *plugin) CanReuse(spec *volume.Spec) bool { return p.of(spec).Reusable }

// SetUpIsMount implements volume.MountingVolumePlugin.
func (p *plugin) SetUpIsMount(*volume.Spec) bool { return true }

// MountDeviceIsMount implements volume.MountingVolumePlugin.
func (p *plugin) MountDeviceIsMount(*volume.Spec) bool { return true }

func (p *plugin) of(spec *volume.Spec) Volume { return p.process.world.volumes[storageOf(spec)] }

// NewAttacher implements volume.AttachableVolumePlugin.
func (p *plugin) NewAttacher() (volume.Attacher, error) { return attacher{p}, nil }

// NewDetacher implements volume.AttachableVolumePlugin.
func (p *plugin) NewDetacher() (volume.Detacher, error) { return attacher{p}, nil }

// NewDeviceMounter implements volume.DeviceMountableVolumePlugin.
func (p *plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return attacher{p}, nil }

// NewDeviceUnmounter implements volume.DeviceMountableVolumePlugin.
func (p *plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return attacher{p}, nil }

// NewMounter implements volume.VolumePlugin.
func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.mounter(spec.Name(), At{Node: p.process.node, Volume: storageOf(spec), Pod: string(pod.UID)}), nil
}

// NewUnmounter implements volume.VolumePlugin.
func (p *plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	return p.mounter(name, At{Node: p.process.node, Volume: name, Pod: string(podUID)}), nil
}

func (p *plugin) mounter(name string, at At) *mounter {
	return &mounter{plugin: p, path: p.host.GetPodVolumeDir(types.UID(at.Pod), PluginName, name), at: at}
}

// GetDeviceMountRefs implements volume.DeviceMountableVolumePlugin.
func (p *plugin) GetDeviceMountRefs(_ context.Context, deviceMountPath string) ([]string, error) {
	staged := p.staged(deviceMountPath)
	var refs []string
	p.process.world.change(func() {
		for at := range p.process.world.mounted {
			if at.Node == staged.Node && at.Volume == staged.Volume {
				refs = append(refs, p.host.GetPodVolumeDir(types.UID(at.Pod), PluginName, p.process.places[at.Volume]))
			}
		}
	})
	slices.Sort(refs)
	return refs, nil
}

// staged returns what is staged at a path.
func (p *plugin) staged(path string) At {
	return At{Node: p.process.node, Volume: path[strings.LastIndexByte(path, '/')+1:]}
}

// attacher attaches, stages and undoes both.
type attacher struct{ *plugin }

// Attach implements volume.Attacher.
func (a attacher) Attach(ctx context.Context, spec *volume.Spec, nodeName types.NodeName) (string, error) {
	w, at := a.process.world, At{Node: string(nodeName), Volume: storageOf(spec)}
	err := a.process.call(ctx, "Attach", at, effect{apply: func() { w.attached[at] = true }, clean: nil})
	return "/dev/" + at.Volume, err
}

// Detach implements volume.Detacher.
func (a attacher) Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error {
	w, at := a.process.world, At{Node: string(nodeName), Volume: volumeName}
	return a.process.call(ctx, "Detach", at, effect{apply: func() { delete(w.attached, at) }})
}

// VolumesAreAttached implements volume.Attacher. The answer is the truth of the moment in which it is called, and may be old
// when it is told.
func (a attacher) VolumesAreAttached(ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, nodeName types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	answers := make(map[v1.UniqueVolumeName]bool, len(specs))
	w := a.process.world
	w.change(func() {
		for name, spec := range specs {
			answers[name] = w.attached[At{Node: string(nodeName), Volume: storageOf(spec)}]
		}
	})
	label := "VolumesAreAttached:" + string(nodeName)
	verdict := a.process.park("VolumesAreAttached", label)
	return answers, a.process.end(ctx, effect{call: &pluginCall{process: a.process, label: label}}, verdict)
}

// WaitForAttach implements volume.Attacher.
func (a attacher) WaitForAttach(ctx context.Context, spec *volume.Spec, _ string, _ *v1.Pod) (string, error) {
	at := At{Node: a.process.node, Volume: storageOf(spec)}
	err := a.process.call(ctx, "WaitForAttach", at, effect{apply: func() {}})
	return "/dev/" + at.Volume, err
}

// GetDeviceMountPath implements volume.DeviceMounter.
func (a attacher) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	return a.host.GetPluginDir(PluginName) + "/mounts/" + storageOf(spec), nil
}

// MountDevice implements volume.DeviceMounter.
func (a attacher) MountDevice(ctx context.Context, _ *volume.Spec, _, path string, _ volume.DeviceMounterArgs) error {
	w, at := a.process.world, a.staged(path)
	return a.process.call(ctx, "MountDevice", at, effect{
		apply: func() { w.staged[at] = true; delete(w.foreign, at) },
		clean: func() { delete(w.staged, at) },
	})
}

// UnmountDevice implements volume.DeviceUnmounter.
func (a attacher) UnmountDevice(ctx context.Context, path string) error {
	w, at := a.process.world, a.staged(path)
	return a.process.call(ctx, "UnmountDevice", at, effect{apply: func() { delete(w.staged, at); delete(w.foreign, at) }})
}

// mounter sets up and tears down.
type mounter struct {
	volume.MetricsNil
	plugin *plugin
	path   string
	at     At
}

// GetPath implements volume.Volume.
func (m *mounter) GetPath() string { return m.path }

// GetAttributes implements volume.Mounter.
func (m *mounter) GetAttributes() volume.Attributes { return volume.Attributes{} }

// SetUp implements volume.Mounter.
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	w, at := m.plugin.process.world, m.at
	updates := 0
	w.change(func() { updates = w.updates[at.Pod] })
	e := effect{apply: func() { w.mount(at); w.refreshed[at] = updates; delete(w.foreign, at) }}
	if !args.IsRemount && !args.ReconstructedVolume {
		e.clean = func() { w.removeMount(at) }
	}
	return m.plugin.process.call(ctx, "SetUp", at, e)
}

// SetUpAt implements volume.Mounter.
func (m *mounter) SetUpAt(ctx context.Context, _ string, args volume.MounterArgs) error {
	return m.SetUp(ctx, args)
}

// TearDown implements volume.Unmounter.
func (m *mounter) TearDown(ctx context.Context) error {
	w, at := m.plugin.process.world, m.plugin.process.tornDown(m.at)
	return m.plugin.process.call(ctx, "TearDown", at, effect{apply: func() { w.unmountAll(at) }})
}

// TearDownAt implements volume.Unmounter.
func (m *mounter) TearDownAt(ctx context.Context, _ string) error { return m.TearDown(ctx) }
