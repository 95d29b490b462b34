package volumemanager

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// attachingPlugin is an instantPlugin whose volumes are attached by the node.
type attachingPlugin struct{ instantPlugin }

func (*attachingPlugin) CanAttach(*volume.Spec) (bool, error)                  { return true, nil }
func (*attachingPlugin) CanDeviceMount(*volume.Spec) (bool, error)             { return true, nil }
func (p *attachingPlugin) NewAttacher() (volume.Attacher, error)               { return p, nil }
func (p *attachingPlugin) NewDetacher() (volume.Detacher, error)               { return p, nil }
func (p *attachingPlugin) NewDeviceMounter() (volume.DeviceMounter, error)     { return p, nil }
func (p *attachingPlugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return p, nil }
func (*attachingPlugin) UnmountDevice(context.Context, string) error           { return nil }
func (*attachingPlugin) Detach(context.Context, string, types.NodeName) error  { return nil }
func (*attachingPlugin) GetDeviceMountRefs(context.Context, string) ([]string, error) {
	return nil, nil
}
func (p *attachingPlugin) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	return filepath.Join(p.host.GetPluginDir(p.GetPluginName()), "mounts", spec.Name()), nil
}

func (*attachingPlugin) Attach(_ context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	return "/dev/" + spec.Name(), nil
}

func (*attachingPlugin) VolumesAreAttached(context.Context, map[v1.UniqueVolumeName]*volume.Spec, types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	return map[v1.UniqueVolumeName]bool{}, nil
}

func (*attachingPlugin) WaitForAttach(_ context.Context, spec *volume.Spec, _ string, _ *v1.Pod) (string, error) {
	return "/dev/" + spec.Name(), nil
}

func (*attachingPlugin) MountDevice(context.Context, *volume.Spec, string, string, volume.DeviceMounterArgs) error {
	return nil
}

// BenchmarkAttachmentsAtOnce attaches the volumes of many pods at once and detaches them, with records that outlive a power cut.
func BenchmarkAttachmentsAtOnce(b *testing.B) {
	const pods = 1000
	m := benchManagerOf(b, &attachingPlugin{}, Options{Resync: -1, WaitTimeout: time.Minute, RuntimeDir: b.TempDir(), StateDir: b.TempDir()})
	all := make([]*v1.Pod, pods)
	for i := range all {
		all[i] = instantPod("pod-" + strconv.Itoa(i))
		all[i].Spec.Volumes[0].Name = fmt.Sprintf("cache-%d", i)
		all[i].Spec.Containers[0].VolumeMounts[0].Name = all[i].Spec.Volumes[0].Name
	}
	var up time.Duration
	for b.Loop() {
		began := time.Now()
		for _, pod := range all {
			require.NoError(b, m.AddPod(b.Context(), pod))
		}
		for _, pod := range all {
			require.NoError(b, m.WaitForAttachAndMount(b.Context(), pod))
		}
		up += time.Since(began)
		for _, pod := range all {
			require.NoError(b, m.RemovePod(pod.UID))
		}
		require.NoError(b, m.WaitForNodeEmpty(b.Context()))
	}
	b.ReportMetric(float64(up.Milliseconds())/float64(b.N), "up-ms")
}
