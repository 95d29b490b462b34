package volumemanager

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// latePlugin refuses every volume, and mounts it all the same when it is told to.
type latePlugin struct {
	tmpfsPlugin
	path chan string
}

func (p *latePlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return &lateVolume{p.volume(spec.Name(), pod.UID), p}, nil
}

type lateVolume struct {
	*tmpfsVolume
	plugin *latePlugin
}

func (v *lateVolume) SetUp(context.Context, volume.MounterArgs) error {
	select {
	case v.plugin.path <- v.path:
	default:
	}
	return volume.Transient(unix.EAGAIN)
}

func TestMountThatAPluginMakesAfterItsCallIsListedWhileTheManagerRuns(t *testing.T) {
	n := newWatchedNode(t)
	n.options.Backoff.Initial = time.Hour
	n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
	plugin := &latePlugin{tmpfsPlugin{mounter: n.mounter}, make(chan string, 1)}
	require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
	n.run()
	looked(t, n.m)
	pod := emptyDirPod("web")
	require.NoError(t, n.m.AddPod(t.Context(), pod))
	path := <-plugin.path
	n.until(pod, func(s VolumeStatus) bool { return s.Err != nil })
	require.NoError(t, n.m.RemovePod(pod.UID))
	require.NoError(t, n.m.WaitForUnmount(t.Context(), pod))

	late := plugin.volume(filepath.Base(path), pod.UID)
	require.NoError(t, late.SetUp(context.WithoutCancel(t.Context()), volume.MounterArgs{}))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	orphans := func() (paths []string) {
		for _, o := range n.m.Status().Orphans {
			paths = append(paths, o.Path)
		}
		return paths
	}
	eventually(t, n.m, func() bool { return len(orphans()) > 0 })
	assert.Equal(t, []string{path}, orphans())
	assert.True(t, n.m.Status().Orphans[0].Mounted)
	assert.Equal(t, pod.UID, n.m.Status().Orphans[0].PodUID)
	unmountForeign(t, path)
	eventually(t, n.m, func() bool { return len(orphans()) == 0 })
}
