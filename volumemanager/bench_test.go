package volumemanager

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// instantPlugin serves emptyDir volumes and does nothing at once.
type instantPlugin struct{ host volume.VolumeHost }

func (p *instantPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}
func (p *instantPlugin) GetPluginName() string                           { return "example.com/instant" }
func (p *instantPlugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }
func (p *instantPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.EmptyDir != nil
}
func (p *instantPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return &instantVolume{path: p.host.GetPodVolumeDir(pod.UID, p.GetPluginName(), spec.Name())}, nil
}
func (p *instantPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	return &instantVolume{path: p.host.GetPodVolumeDir(uid, p.GetPluginName(), name)}, nil
}

type instantVolume struct {
	volume.MetricsNil
	path string
}

func (v *instantVolume) GetPath() string                                           { return v.path }
func (v *instantVolume) GetAttributes() volume.Attributes                          { return volume.Attributes{} }
func (v *instantVolume) SetUp(context.Context, volume.MounterArgs) error           { return nil }
func (v *instantVolume) SetUpAt(context.Context, string, volume.MounterArgs) error { return nil }
func (v *instantVolume) TearDown(context.Context) error                            { return nil }
func (v *instantVolume) TearDownAt(context.Context, string) error                  { return nil }

// BenchmarkPod is what a pod with one volume waits, from AddPod to ready and from RemovePod to gone, on a node with many
// volumes, with a plugin that takes no time.
func BenchmarkPod(b *testing.B) {
	for _, others := range []int{0, 1000, 10000} {
		for _, records := range []bool{false, true} {
			b.Run(fmt.Sprintf("others=%d/records=%t", others, records), func(b *testing.B) {
				o := Options{Resync: -1}
				if records {
					o.RuntimeDir = b.TempDir()
				}
				m := benchManager(b, o)
				for i := range others {
					require.NoError(b, m.AddPod(b.Context(), instantPod(fmt.Sprintf("other-%d", i))))
				}
				for i := range others {
					require.NoError(b, m.WaitForAttachAndMount(b.Context(), instantPod(fmt.Sprintf("other-%d", i))))
				}
				pod := instantPod("web")
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, m.AddPod(b.Context(), pod))
					require.NoError(b, m.WaitForAttachAndMount(b.Context(), pod))
					require.NoError(b, m.RemovePod(pod.UID))
					require.NoError(b, m.WaitForUnmount(b.Context(), pod))
				}
			})
		}
	}
}

func instantPod(name string) *v1.Pod {
	pod := podOf(name, "-cache")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	return pod
}

func benchManager(b *testing.B, o Options) *Manager {
	b.Helper()
	return benchManagerOf(b, &instantPlugin{}, o)
}

func benchManagerOf(tb testing.TB, plugin volume.VolumePlugin, o Options) *Manager {
	tb.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: tb.TempDir(), NodeName: testNode})
	require.NoError(tb, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(tb, plugins.InitPlugins(tb.Context(), plugin))
	o.NoRecords, o.NoMountChecks = o.RuntimeDir == "", o.Mounter == nil
	m, err := New(plugins, o)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		require.NoError(tb, <-ended)
	})
	m.PodsComplete()
	return m
}
