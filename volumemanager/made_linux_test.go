package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// overtakenPlugin is a tmpfsPlugin. During its set-up another program changes its path.
type overtakenPlugin struct {
	tmpfsPlugin
	before, after func(path string)
}

func (p *overtakenPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return &overtakenVolume{p.volume(spec.Name(), pod.UID), p}, nil
}

type overtakenVolume struct {
	*tmpfsVolume
	plugin *overtakenPlugin
}

func (v *overtakenVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	v.plugin.before(v.path)
	defer v.plugin.after(v.path)
	return v.tmpfsVolume.SetUp(ctx, args)
}

func newOvertakenNode(t *testing.T, before, after func(path string)) *watchedNode {
	t.Helper()
	n := newWatchedNode(t)
	n.options.Backoff.Initial = time.Millisecond
	n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
	plugin := &overtakenPlugin{tmpfsPlugin: tmpfsPlugin{mounter: n.mounter}, before: before, after: after}
	require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
	return n
}

func mountForeign(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, unix.Mount("foreign", path, "tmpfs", 0, "size=64k"))
	require.NoError(t, os.WriteFile(filepath.Join(path, "precious"), nil, 0o600))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// foreignIsLeftAlone removes the pod, checks that the teardown is refused while a foreign mount is at the path, and unmounts
// that mount.
func (n *watchedNode) foreignIsLeftAlone(pod *v1.Pod, path string) {
	n.t.Helper()
	s := n.until(pod, has(ReasonMountedOver))
	require.ErrorIs(n.t, s.Conditions[0].Err, mount.ErrForeign)
	require.NoError(n.t, n.m.RemovePod(pod.UID))
	s = n.until(pod, func(s VolumeStatus) bool { return !s.Wanted && s.Err != nil })
	require.ErrorIs(n.t, s.Err, mount.ErrForeign)
	assert.FileExists(n.t, filepath.Join(path, "precious"))
	unmountForeign(n.t, path)
	require.NoError(n.t, n.m.WaitForUnmount(n.t.Context(), pod))
	assert.NoDirExists(n.t, path)
}

func TestWhatASetUpMadeIsOursAndNotWhatIsOnTopAfterwards(t *testing.T) {
	n := newOvertakenNode(t, func(string) {}, func(path string) { mountForeign(t, path) })
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	n.foreignIsLeftAlone(pod, path)
}

// The plugin finds a mount at its path and takes it for its own, as many do.
func TestForeignMountThatASetUpFindsInPlaceOfOursIsNotTakenForOurs(t *testing.T) {
	again := make(chan struct{})
	n := newOvertakenNode(t, func(path string) {
		select {
		case <-again:
			mountForeign(t, path)
			again = nil
		default:
		}
	}, func(string) {})
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	close(again)
	unmountForeign(t, path)
	n.foreignIsLeftAlone(pod, path)
}
