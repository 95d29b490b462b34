package operationexecutor_test

import (
	"context"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

const pluginName = "example.com/scripted"

// history is what was done, in order, by the plugin and by the ports.
type history struct {
	mu    sync.Mutex
	lines []string
}

func (h *history) add(parts ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, strings.Join(parts, " "))
}

func (h *history) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

func (h *history) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = nil
}

func (h *history) count(line string) int {
	n := 0
	for _, l := range h.all() {
		if l == line {
			n++
		}
	}
	return n
}

// plugin is a volume plugin whose calls do what a test says.
type plugin struct {
	*history
	attachable, stageable bool
	host                  volume.VolumeHost

	mu     sync.Mutex
	script map[string]func(ctx context.Context) error
	refs   []string

	plain    bool                    // its devices need no custom calls
	forPods  string                  // the directory of the devices that it makes for each pod; empty: a pod gets the volume's
	waited   []string                // the paths with which WaitForAttach was called
	mounting bool                    // it says that set-up and staging are mounts
	path     string                  // of every mounter; empty: that of the host
	spoil    func(spec *volume.Spec) // what NewMounter does to its spec; nil: nothing
	onDetach func(volumeName string) // nil does nothing
}

// on says what a method does; nil succeeds.
func (p *plugin) on(method string, do func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script[method] = do
}

// fail says with what a method fails; nil succeeds.
func (p *plugin) fail(method string, err error) {
	p.on(method, func(context.Context) error { return err })
}

func (p *plugin) do(ctx context.Context, method string) error {
	p.add(method)
	p.mu.Lock()
	do := p.script[method]
	p.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx)
}

func (p *plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}
func (p *plugin) GetPluginName() string { return pluginName }
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	return spec.Name(), nil
}
func (p *plugin) SetUpIsMount(*volume.Spec) bool                  { return p.mounting }
func (p *plugin) MountDeviceIsMount(*volume.Spec) bool            { return p.mounting }
func (p *plugin) CanSupport(*volume.Spec) bool                    { return true }
func (p *plugin) CanAttach(*volume.Spec) (bool, error)            { return p.attachable, nil }
func (p *plugin) CanDeviceMount(*volume.Spec) (bool, error)       { return p.stageable, nil }
func (p *plugin) NewAttacher() (volume.Attacher, error)           { return attacher{p}, nil }
func (p *plugin) NewDetacher() (volume.Detacher, error)           { return attacher{p}, nil }
func (p *plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return attacher{p}, nil }
func (p *plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) {
	return attacher{p}, nil
}
func (p *plugin) pathOf(podUID types.UID, name string) string {
	if p.path != "" {
		return p.path
	}
	return p.host.GetPodVolumeDir(podUID, pluginName, name)
}
func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if p.spoil != nil {
		p.spoil(spec)
	}
	p.mu.Lock()
	do := p.script["NewMounter"]
	p.mu.Unlock()
	if do != nil {
		return nil, do(context.Background())
	}
	return &mounter{plugin: p, path: p.pathOf(pod.UID, spec.Name())}, nil
}
func (p *plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	return &mounter{plugin: p, path: p.pathOf(podUID, name)}, nil
}
func (p *plugin) GetDeviceMountRefs(context.Context, string) ([]string, error) { return p.refs, nil }

// attacher attaches, stages and undoes both.
type attacher struct{ *plugin }

func (a attacher) Attach(ctx context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	return "/dev/" + spec.Name(), a.do(ctx, "Attach")
}
func (a attacher) Detach(ctx context.Context, volumeName string, _ types.NodeName) error {
	if a.onDetach != nil {
		a.onDetach(volumeName)
	}
	return a.do(ctx, "Detach")
}
func (a attacher) VolumesAreAttached(context.Context, map[v1.UniqueVolumeName]*volume.Spec, types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	return nil, nil
}
func (a attacher) WaitForAttach(ctx context.Context, spec *volume.Spec, devicePath string, _ *v1.Pod) (string, error) {
	a.mu.Lock()
	a.waited = append(a.waited, devicePath)
	a.mu.Unlock()
	return "/dev/" + spec.Name(), a.do(ctx, "WaitForAttach")
}
func (a attacher) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	return a.host.GetPluginDir(pluginName) + "/mounts/" + spec.Name(), nil
}
func (a attacher) MountDevice(ctx context.Context, _ *volume.Spec, _, _ string, _ volume.DeviceMounterArgs) error {
	return a.do(ctx, "MountDevice")
}
func (a attacher) UnmountDevice(ctx context.Context, _ string) error {
	return a.do(ctx, "UnmountDevice")
}

// mounter sets up and tears down.
type mounter struct {
	volume.MetricsProvider
	*plugin
	path string
	args volume.MounterArgs
}

func (m *mounter) GetPath() string                    { return m.path }
func (m *mounter) CanMount(ctx context.Context) error { return m.do(ctx, "CanMount") }
func (m *mounter) GetAttributes() volume.Attributes   { return volume.Attributes{} }
func (m *mounter) TearDown(ctx context.Context) error { return m.do(ctx, "TearDown") }
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	m.args = args
	return m.do(ctx, "SetUp")
}
func (m *mounter) SetUpAt(ctx context.Context, _ string, args volume.MounterArgs) error {
	return m.SetUp(ctx, args)
}
func (m *mounter) TearDownAt(ctx context.Context, _ string) error { return m.TearDown(ctx) }
