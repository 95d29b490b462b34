package volumemanager

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// instantDisk is a plugin whose volumes are attached and staged, and that does nothing at once.
type instantDisk struct{ volume.MetricsNil }

func (*instantDisk) Init(context.Context, volume.VolumeHost) error   { return nil }
func (*instantDisk) GetPluginName() string                           { return "example.com/disk" }
func (*instantDisk) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }
func (*instantDisk) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.RBD != nil
}
func (*instantDisk) CanAttach(*volume.Spec) (bool, error)              { return true, nil }
func (*instantDisk) CanDeviceMount(*volume.Spec) (bool, error)         { return true, nil }
func (p *instantDisk) NewAttacher() (volume.Attacher, error)           { return p, nil }
func (p *instantDisk) NewDetacher() (volume.Detacher, error)           { return p, nil }
func (p *instantDisk) NewDeviceMounter() (volume.DeviceMounter, error) { return p, nil }
func (p *instantDisk) NewDeviceUnmounter() (volume.DeviceUnmounter, error) {
	return p, nil
}
func (p *instantDisk) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error)   { return p, nil }
func (p *instantDisk) NewUnmounter(string, types.UID) (volume.Unmounter, error)   { return p, nil }
func (*instantDisk) Detach(context.Context, string, types.NodeName) error         { return nil }
func (*instantDisk) GetDeviceMountPath(*volume.Spec) (string, error)              { return "/nowhere", nil }
func (*instantDisk) GetDeviceMountRefs(context.Context, string) ([]string, error) { return nil, nil }
func (*instantDisk) UnmountDevice(context.Context, string) error                  { return nil }
func (*instantDisk) GetPath() string                                              { return "/nowhere" }
func (*instantDisk) GetAttributes() volume.Attributes                             { return volume.Attributes{} }
func (*instantDisk) SetUp(context.Context, volume.MounterArgs) error              { return nil }
func (*instantDisk) SetUpAt(context.Context, string, volume.MounterArgs) error    { return nil }
func (*instantDisk) TearDown(context.Context) error                               { return nil }
func (*instantDisk) TearDownAt(context.Context, string) error                     { return nil }
func (*instantDisk) Attach(context.Context, *volume.Spec, types.NodeName) (string, error) {
	return "/dev/x", nil
}
func (*instantDisk) WaitForAttach(_ context.Context, _ *volume.Spec, path string, _ *v1.Pod) (string, error) {
	return path, nil
}
func (*instantDisk) VolumesAreAttached(context.Context, map[v1.UniqueVolumeName]*volume.Spec, types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	return nil, nil
}
func (*instantDisk) MountDevice(context.Context, *volume.Spec, string, string, volume.DeviceMounterArgs) error {
	return nil
}

// diskPods returns pods; each uses the disk that name returns.
func diskPods(n int, name func(i int) string) []*v1.Pod {
	pods := make([]*v1.Pod, n)
	for i := range pods {
		pods[i] = podOf(fmt.Sprintf("pod-%d", i), "-"+name(i))
		pods[i].Spec.Volumes[0].VolumeSource = v1.VolumeSource{RBD: &v1.RBDVolumeSource{RBDImage: name(i)}}
	}
	return pods
}

// BenchmarkVolumesComeAndGo is what each of many volumes costs from AddPod to ready, and from RemovePod until the node is empty.
func BenchmarkVolumesComeAndGo(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("volumes=%d", n), func(b *testing.B) {
			comeAndGo(b, diskPods(n, func(i int) string { return fmt.Sprintf("disk-%d", i) }))
		})
	}
}

// BenchmarkPodsOfOneVolume is what each of many pods of one volume costs.
func BenchmarkPodsOfOneVolume(b *testing.B) {
	for _, n := range []int{250, 500, 1000, 2000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			comeAndGo(b, diskPods(n, func(int) string { return "disk" }))
		})
	}
}

func comeAndGo(b *testing.B, pods []*v1.Pod) {
	b.Helper()
	m := benchManagerOf(b, &instantDisk{}, Options{Resync: -1})
	ctx := b.Context()
	var come, gone cost
	for b.Loop() {
		come.of(b, func() {
			for _, pod := range pods {
				require.NoError(b, m.AddPod(ctx, pod))
			}
			for _, pod := range pods {
				require.NoError(b, m.WaitForAttachAndMount(ctx, pod))
			}
		})
		gone.of(b, func() {
			for _, pod := range pods {
				require.NoError(b, m.RemovePod(pod.UID))
			}
			require.NoError(b, m.WaitForNodeEmpty(ctx))
		})
	}
	come.report(b, "come", len(pods))
	gone.report(b, "gone", len(pods))
}

// cost is what the process has used.
type cost struct {
	processor time.Duration
	allocs    uint64
}

// of adds what f uses; the collector's share of what f leaves is in it.
func (c *cost) of(b *testing.B, f func()) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := processorTime()
	f()
	c.processor += processorTime() - began
	runtime.ReadMemStats(&after)
	c.allocs += after.Mallocs - before.Mallocs
}

func (c *cost) report(b *testing.B, name string, n int) {
	each := float64(b.N * n)
	b.ReportMetric(float64(c.processor.Nanoseconds())/1000/each, name+"-cpu-µs")
	b.ReportMetric(float64(c.allocs)/each, name+"-allocs")
}
