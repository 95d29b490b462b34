package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// What a restart left is not known before Run has read the records: until then no pod is gone, and the node is not empty.
func TestAPodIsNotGoneBeforeTheRecordsWereRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		w.start()
		pod := podOf("web", "data", "-scratch")
		w.add(pod)
		require.NoError(t, w.stop())

		m := w.prepare()
		require.NoError(t, m.RemovePod(pod.UID))
		m.PodsComplete()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.WaitForUnmount(ctx, pod), context.DeadlineExceeded)
		require.ErrorIs(t, m.WaitForNodeEmpty(ctx), context.DeadlineExceeded)

		gone := waiting(func() error { return m.WaitForUnmount(t.Context(), pod) })
		empty := waiting(func() error { return m.WaitForNodeEmpty(t.Context()) })
		synctest.Wait()
		w.run()
		for _, wait := range []func() (error, bool){gone, empty} {
			err, ended := wait()
			require.NoError(t, err)
			require.True(t, ended)
		}
		assert.Empty(t, w.mounts())
	})
}

// A manager that was killed when it had torn down the last volume of a pod, and had not yet removed the directories above,
// leaves no record of them, and neither does a power cut. They go when the pod is removed again, before or while the next manager
// runs, and by rmdir.
func TestDirectoriesOfAPodGoWhenItIsRemovedAgain(t *testing.T) {
	cases := map[string]func(m *Manager, run func()){
		"before Run":                  func(m *Manager, run func()) { assert.NoError(t, m.RemovePod("uid-web")); run() },
		"before Run and PodsComplete": func(m *Manager, run func()) { assert.NoError(t, m.RemovePod("uid-web")); m.PodsComplete(); run() },
		"while it runs":               func(m *Manager, run func()) { m.PodsComplete(); run(); assert.NoError(t, m.RemovePod("uid-web")) },
	}
	for name, remove := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, withRecords(t))
				host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: testNode})
				require.NoError(t, err)
				for _, dir := range []string{
					host.GetPodVolumeDir("uid-web", "example.com/fake", "data"),
					host.GetPodVolumeDir("uid-web", "example.com/fake", ".being-made"),
					filepath.Join(host.GetPodsDir(), "uid-web", safepath.SubpathsDir, "data/main"),
					host.GetPodVolumeDeviceDir("uid-web", "example.com/fake"),
					host.GetPodPluginDir("uid-web", "example.com/fake"),
					filepath.Join(host.GetPodsDir(), "uid-other", "volumes"),
				} {
					require.NoError(t, os.MkdirAll(dir, 0o750))
				}
				w.plugins = volume.NewVolumePluginMgr(host)
				require.NoError(t, w.plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: w.mounter, Backend: w.backend})))
				w.manager, err = New(w.plugins, w.options)
				require.NoError(t, err)
				remove(w.manager, w.run)
				require.NoError(t, w.manager.WaitForUnmount(t.Context(), podOf("web")))
				assert.NoDirExists(t, filepath.Join(host.GetPodsDir(), "uid-web"))
				assert.DirExists(t, filepath.Join(host.GetPodsDir(), "uid-other"), "that pod was not removed")
				empty, full := host.GetPodVolumeDir("uid-later", "example.com/fake", "empty"), host.GetPodVolumeDir("uid-later", "example.com/fake", "full")
				require.NoError(t, os.MkdirAll(empty, 0o750))
				require.NoError(t, os.MkdirAll(filepath.Join(full, "content"), 0o750))
				require.NoError(t, w.manager.RemovePod("uid-later"))
				assert.NoDirExists(t, empty)
				assert.DirExists(t, filepath.Join(full, "content"))
			})
		})
	}
}

// What a crash left of one plugin's volumes goes with the last volume of the pod, though that is another plugin's.
func TestDirectoriesOfAPodGoWithItsLastVolume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: testNode})
		require.NoError(t, err)
		w.plugins = volume.NewVolumePluginMgr(host)
		require.NoError(t, w.plugins.InitPlugins(t.Context(),
			fake.NewPlugin(fake.PluginOptions{Mounter: w.mounter, Backend: w.backend}),
			fake.NewPlugin(fake.PluginOptions{Name: "example.com/another", Mounter: w.mounter, Backend: w.backend})))
		w.manager, err = New(w.plugins, w.options)
		require.NoError(t, err)
		w.run()
		pod := podOf("web", "-scratch")
		w.add(pod)
		require.NoError(t, os.MkdirAll(filepath.Dir(host.GetPodVolumeDir(pod.UID, "example.com/another", "x")), 0o750))
		w.remove(pod)
		assert.NoDirExists(t, filepath.Join(host.GetPodsDir(), string(pod.UID)))
	})
}
