package volumemanager

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// newDirectoryNode returns a watched node whose emptyDirs are those of the plugin.
func newDirectoryNode(t *testing.T) *watchedNode {
	t.Helper()
	n := newWatchedNode(t)
	n.options.Backoff.Initial = time.Millisecond
	n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
	require.NoError(t, n.plugins.InitPlugins(t.Context(), emptydir.New(emptydir.Options{Mounter: n.mounter})))
	return n
}

// diskPod is a pod with an emptyDir on disk.
func diskPod(name string) *v1.Pod {
	pod := podOf(name, "-cache")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	return pod
}

func TestMountOverAParentOfADirectoryIsReportedAndItsContentStays(t *testing.T) {
	for name, over := range map[string]func(host volume.VolumeHost, path string) string{
		"the directory of pods": func(host volume.VolumeHost, _ string) string { return host.GetPodsDir() },
		"the pod's":             func(_ volume.VolumeHost, path string) string { return filepath.Dir(filepath.Dir(filepath.Dir(path))) },
		"its volumes":           func(_ volume.VolumeHost, path string) string { return filepath.Dir(filepath.Dir(path)) },
		"the plugin's":          func(_ volume.VolumeHost, path string) string { return filepath.Dir(path) },
		"the volume":            func(_ volume.VolumeHost, path string) string { return path },
	} {
		for _, shown := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				n := newDirectoryNode(t)
				n.run()
				pod := diskPod("web")
				path := n.add(pod)
				require.NoError(t, os.WriteFile(filepath.Join(path, "ours"), nil, 0o600))
				at := over(n.plugins.Host(), path)
				require.NoError(t, unix.Mount("foreign", at, "tmpfs", 0, "size=1m"))
				precious := filepath.Join(path, "precious")
				if shown {
					require.NoError(t, os.MkdirAll(path, 0o700))
					require.NoError(t, os.WriteFile(precious, nil, 0o600))
				}
				s := n.until(pod, has(ReasonMountedOver))
				require.ErrorIs(t, s.Conditions[0].Err, mount.ErrForeign)

				require.NoError(t, n.m.RemovePod(pod.UID))
				s = n.until(pod, func(s VolumeStatus) bool { return !s.Wanted && s.Err != nil })
				require.ErrorIs(t, s.Err, mount.ErrForeign)
				if shown {
					assert.FileExists(t, precious)
				}
				unmountForeign(t, at)
				require.NoError(t, n.m.WaitForUnmount(t.Context(), pod), "when it has gone, all goes on by itself")
				assert.NoDirExists(t, path)
			})
		}
	}
}

func TestARemovedDirectoryIsNoReasonToRefuse(t *testing.T) {
	n := newDirectoryNode(t)
	n.run()
	pod := diskPod("web")
	path := n.add(pod)
	require.NoError(t, os.RemoveAll(path))
	n.remove(pod)
	assert.NoDirExists(t, filepath.Join(n.plugins.Host().GetPodsDir(), string(pod.UID)))
}

// A new directory of records is filled from what is there, and what is there proves by itself whose it is.
func TestWhatAForeignMountShowsIsNotRebuiltWhenRecordsAreLost(t *testing.T) {
	n := newDirectoryNode(t)
	pod := diskPod("web")
	n.leave(t, pod)
	require.NoError(t, os.Rename(n.options.RuntimeDir, n.options.RuntimeDir+"-lost"))
	host := n.plugins.Host()
	path := host.GetPodVolumeDir(pod.UID, emptydir.Name, "cache")
	ours := filepath.Join(path, "ours")
	require.NoError(t, os.WriteFile(ours, nil, 0o600))
	stray := filepath.Join(filepath.Dir(path), "stray")
	require.NoError(t, os.WriteFile(stray, []byte("precious"), 0o600))
	over := filepath.Dir(host.GetPodVolumeDir("uid-other", emptydir.Name, "cache"))
	require.NoError(t, os.MkdirAll(over, 0o700))
	require.NoError(t, unix.Mount("foreign", over, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	file, dir := filepath.Join(over, "file"), filepath.Join(over, "dir")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "content"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(over, "empty"), 0o700))

	n.run()
	looked(t, n.m)
	require.NoError(t, n.m.WaitForNodeEmpty(t.Context()), "ours was rebuilt, and goes")
	assert.NoFileExists(t, ours)
	for _, foreign := range []string{stray, file, filepath.Join(dir, "content"), filepath.Join(over, "empty")} {
		_, err := os.Stat(foreign)
		require.NoError(t, err)
	}
	var left []string
	for _, o := range n.m.Status().Orphans {
		if !o.Mounted {
			require.ErrorIs(t, o.Err, owned.ErrUnproven, o.Path)
			left = append(left, o.Path)
		}
	}
	assert.ElementsMatch(t, []string{stray, file, dir, filepath.Join(over, "empty")}, left)
}
