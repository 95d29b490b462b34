package cache_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

const (
	node       = types.NodeName("node-1")
	pluginName = "example.com/plain"
)

// plugin serves the volumes whose driver is "plain.example.com"; those whose names begin with "s" are shared by pods.
type plugin struct {
	volume.AttachableVolumePlugin // The methods that the caches do not call.
	remount                       bool
	any                           bool // it serves everything
	asked                         func()
}

func (p *plugin) Init(context.Context, volume.VolumeHost) error { return nil }
func (p *plugin) GetPluginName() string                         { return pluginName }
func (p *plugin) CanSupport(spec *volume.Spec) bool {
	if p.asked != nil {
		p.asked()
	}
	d, ok := spec.Driver()
	return p.any || ok && d.PluginName == pluginName
}
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }
func (p *plugin) CanAttach(spec *volume.Spec) (bool, error)       { return spec.Name()[0] == 's', nil }
func (p *plugin) CanDeviceMount(spec *volume.Spec) (bool, error)  { return spec.Name()[0] == 's', nil }
func (p *plugin) RequiresRemount(*volume.Spec) bool               { return p.remount }

func newPlugins(t *testing.T, p *plugin) *volume.VolumePluginMgr {
	t.Helper()
	return newPluginsOf(t, p)
}

func newPluginsOf(t *testing.T, p volume.VolumePlugin) *volume.VolumePluginMgr {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: node})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), p))
	return plugins
}

// changes keeps what the hook is told.
type changes struct{ names []v1.UniqueVolumeName }

func (c *changes) options() cache.Options {
	return cache.Options{Changed: func(name v1.UniqueVolumeName) { c.names = append(c.names, name) }}
}

// take returns what was told since the last call.
func (c *changes) take() []v1.UniqueVolumeName {
	names := c.names
	c.names = nil
	return names
}

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

func spec(name string) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{
		Name: name, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "plain.example.com"}},
	})
}

// shared is the unique name of a volume that pods share.
func shared(name string) v1.UniqueVolumeName { return volume.GetUniqueVolumeName(pluginName, name) }

func opts(name v1.UniqueVolumeName, podName, inner string) operationexecutor.MarkVolumeOpts {
	return operationexecutor.MarkVolumeOpts{
		VolumeName: name, PodName: volume.UniquePodName(podName), PodUID: types.UID(podName), Pod: pod(podName),
		VolumeSpec: spec(inner), OuterVolumeSpecNames: []string{"outer"},
	}
}
