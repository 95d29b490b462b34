package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	k8svolume "k8s.io/kubernetes/pkg/volume"
	k8svolumetest "k8s.io/kubernetes/pkg/volume/testing"

	"github.com/volumekit/volumekit/volume"
)

// pluginCounts are the numbers of plugins among which one is looked up.
var pluginCounts = []int{1, 10, 30}

// pluginName is the name of plugin i; specs name it as the driver pluginDriver.
func pluginName(i int) string { return fmt.Sprintf("example.com/plugin-%d", i) }

func pluginDriver(i int) string { return fmt.Sprintf("plugin-%d.example.com", i) }

func csiVolume(driver string) *v1.Volume {
	return &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}}}
}

// k8sPluginsOf returns n plugins for Kubernetes. Each CanSupport compares one string, much like those of Kubernetes itself.
func k8sPluginsOf(n int) []k8svolume.VolumePlugin {
	var plugins []k8svolume.VolumePlugin
	for i := range n {
		driver := pluginDriver(i)
		plugins = append(plugins, &k8svolumetest.FakeVolumePlugin{PluginName: pluginName(i), CanSupportFn: func(s *k8svolume.Spec) bool {
			return s.Volume != nil && s.Volume.CSI != nil && s.Volume.CSI.Driver == driver
		}})
	}
	return plugins
}

// predicatePlugin serves the specs that name it as their driver, and declares nothing.
type predicatePlugin struct {
	volume.VolumePlugin
	name string
}

func (p *predicatePlugin) Init(context.Context, volume.VolumeHost) error { return nil }
func (p *predicatePlugin) GetPluginName() string                         { return p.name }
func (p *predicatePlugin) CanSupport(spec *volume.Spec) bool             { return spec.HasDriver(p.name) }
func (p *predicatePlugin) GetVolumeName(*volume.Spec) (string, error) {
	return "", errors.ErrUnsupported
}
func (p *predicatePlugin) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return nil, errors.ErrUnsupported
}
func (p *predicatePlugin) NewUnmounter(string, types.UID) (volume.Unmounter, error) {
	return nil, errors.ErrUnsupported
}

// declaringPlugin declares what it serves.
type declaringPlugin struct{ predicatePlugin }

func (p *declaringPlugin) SpecKinds() []volume.SpecKind { return volume.DriverKinds(p.name) }

// ourPluginsOf returns n plugins that declare what they serve, and n that do not.
func ourPluginsOf(n int) (declaring, predicates []volume.VolumePlugin) {
	for i := range n {
		declaring = append(declaring, &declaringPlugin{predicatePlugin{name: pluginName(i)}})
		predicates = append(predicates, &predicatePlugin{name: pluginName(i)})
	}
	return declaring, predicates
}

// finder is one way to find the plugin of a spec.
type finder struct {
	impl string
	// find is what is measured, name what it found.
	find func() error
	name func() string
}

// finders find the plugin in the middle of n: ours where all declare what they serve, ours-predicates where none does.
func finders(tb testing.TB, n int) []finder {
	vol := csiVolume(pluginDriver(n / 2))
	theirs, theirSpec := k8sPlugins(tb, k8sPluginsOf(n)...), k8svolume.NewSpecFromVolume(vol)
	declaring, predicate := ourPluginsOf(n)
	spec := volume.NewSpecFromVolume(vol)
	limit := map[string]string{}
	for i := range n {
		limit[pluginDriver(i)] = pluginName(i)
	}
	return []finder{
		{
			impl: "k8s",
			find: func() error { _, err := theirs.FindPluginBySpec(theirSpec); return err },
			name: func() string { return found(theirs.FindPluginBySpec(theirSpec)) },
		},
		ourFinder("ours", ourPlugins(tb, declaring...), spec),
		ourFinder("ours-predicates", ourPlugins(tb, predicate...), spec),
		{
			impl: "limit",
			find: func() error { return want(limit[vol.CSI.Driver] != "", nil) },
			name: func() string { return limit[vol.CSI.Driver] },
		},
	}
}

func ourFinder(impl string, plugins *volume.VolumePluginMgr, spec *volume.Spec) finder {
	return finder{
		impl: impl,
		find: func() error { _, err := plugins.FindPluginBySpec(spec); return err },
		name: func() string { return found(plugins.FindPluginBySpec(spec)) },
	}
}

// found is the name of the plugin that was found, or the error.
func found(plugin interface{ GetPluginName() string }, err error) string {
	if err != nil {
		return err.Error()
	}
	return plugin.GetPluginName()
}

// BenchmarkFindPlugin looks up the one plugin of n that supports a spec, from one goroutine and from one on each
// processor.
func BenchmarkFindPlugin(b *testing.B) {
	for _, n := range pluginCounts {
		for _, l := range finders(b, n) {
			b.Run(fmt.Sprintf("goroutines=one/plugins=%d/impl=%s", n, l.impl), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					must(b, l.find())
				}
			})
			b.Run(fmt.Sprintf("goroutines=all/plugins=%d/impl=%s", n, l.impl), func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := l.find(); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// TestFindPluginAgrees proves that all find the same plugin.
func TestFindPluginAgrees(t *testing.T) {
	for _, n := range pluginCounts {
		for _, l := range finders(t, n) {
			if got, want := l.name(), pluginName(n/2); got != want {
				t.Errorf("%s among %d: %q, want %q", l.impl, n, got, want)
			}
		}
	}
}
