package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
)

// knownNode is a real node whose plugin can tell what volume it is that lies at a path, if knows is set.
func knownNode(t *testing.T, knows bool) realNode {
	t.Helper()
	n := newRealNode(t)
	n.options.Mounter = mount.New(mount.Options{})
	if knows {
		host := n.plugins.Host()
		n.plugins = volume.NewVolumePluginMgr(host)
		require.NoError(t, n.plugins.InitPlugins(t.Context(), &knowingPlugin{tmpfsPlugin{mounter: mount.New(mount.Options{})}}))
	}
	return n
}

// knowingPlugin is a tmpfsPlugin that reconstructs.
type knowingPlugin struct{ tmpfsPlugin }

func (p *knowingPlugin) ConstructVolumeSpec(name, _ string) (volume.ReconstructedVolume, error) {
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	return volume.ReconstructedVolume{Spec: spec}, nil
}

func (n realNode) pathOf(pod *v1.Pod) string {
	return n.plugins.Host().GetPodVolumeDir(pod.UID, "example.com/tmpfs", "cache")
}

// idAt returns the unique id of the mount at a path, and zero when there is none.
func idAt(t *testing.T, path string) mount.Identity {
	t.Helper()
	found, err := mount.New(mount.Options{}).Lookup(t.Context(), path)
	if err != nil {
		require.ErrorIs(t, err, mount.ErrNotMounted)
		return mount.Identity{}
	}
	return found.Identity()
}

// mountTmpfs mounts a tmpfs that belongs to no volume, until the end of the test.
func mountTmpfs(t *testing.T, path string) {
	t.Helper()
	mounter := mount.New(mount.Options{})
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: "foreign", Target: path, FSType: "tmpfs"}))
	t.Cleanup(func() { _ = mounter.Unmount(context.WithoutCancel(t.Context()), path, mount.UnmountOptions{}) })
}

// looked waits until the manager has looked at what lies under the root.
func looked(t *testing.T, m *Manager) {
	t.Helper()
	eventually(t, m, func() bool {
		return m.orphans.HasLooked()
	})
}

// eventually waits until something becomes so, which a change of the manager tells of.
func eventually(t *testing.T, m *Manager, is func() bool) {
	t.Helper()
	changed, cancel := m.changes.Subscribe(changes.AnyPod)
	defer cancel()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for !is() {
		select {
		case <-changed:
		case <-patience.C:
			require.Fail(t, "it never came to that", "%+v", m.Status())
		}
	}
}

// leave runs a manager that sets up the pods and ends.
func (n realNode) leave(t *testing.T, pods ...*v1.Pod) {
	t.Helper()
	m, stop := n.start(t)
	for _, pod := range pods {
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	}
	looked(t, m)
	stop()
}

func TestLostRecordsAreRebuiltThroughThePlugins(t *testing.T) {
	n := knownNode(t, true)
	kept, gone := emptyDirPod("kept"), emptyDirPod("gone")
	n.leave(t, kept, gone)
	require.NoError(t, os.Rename(n.options.RuntimeDir, n.options.RuntimeDir+"-lost"))
	before := idAt(t, n.pathOf(kept))

	m, stop := n.start(t)
	eventually(t, m, func() bool { return m.Status().Rebuilt == 2 })
	for _, pod := range []*v1.Pod{kept, gone} {
		status := m.PodStatus(pod.UID)
		require.Len(t, status, 1)
		assert.Equal(t, PhaseUncertain, status[0].Phase)
	}
	require.NoError(t, m.AddPod(t.Context(), kept))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), kept))
	assert.Equal(t, before, idAt(t, n.pathOf(kept)), "it was not mounted anew")
	assert.NotZero(t, idAt(t, n.pathOf(gone)), "nothing goes before all pods are known")
	m.PodsComplete()
	require.NoError(t, m.WaitForUnmount(t.Context(), gone))
	assert.NoDirExists(t, n.pathOf(gone))
	assert.Empty(t, m.Status().Orphans)
	require.NoError(t, m.RemovePod(kept.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	stop()
	assert.Empty(t, recordsIn(t, n.options.RuntimeDir))
}

// TestWhatWasRebuiltIsOnRecord: a manager that is killed right after it rebuilt loses nothing.
func TestWhatWasRebuiltIsOnRecord(t *testing.T) {
	n := knownNode(t, true)
	pod := emptyDirPod("web")
	n.leave(t, pod)
	require.NoError(t, os.Rename(n.options.RuntimeDir, n.options.RuntimeDir+"-lost"))
	m, stop := n.start(t)
	looked(t, m)
	stop()
	m, stop = n.start(t)
	defer stop()
	looked(t, m)
	assert.Len(t, recordsIn(t, n.options.RuntimeDir), 1)
	assert.Zero(t, m.Status().Rebuilt)
	m.PodsComplete()
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	assert.NoDirExists(t, n.pathOf(pod))
}

func TestOrphansAreReportedAndRemovedByOptionOnly(t *testing.T) {
	for _, policy := range []OrphanPolicy{OrphansAreReported, OrphansAreRemoved} {
		n := knownNode(t, true)
		n.options.Orphans = policy
		require.NoError(t, n.plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})))
		wanted := emptyDirPod("wanted")
		n.leave(t, wanted)
		host := n.plugins.Host()
		orphan, full := n.pathOf(emptyDirPod("orphan")), n.pathOf(emptyDirPod("full"))
		empty, staged := n.pathOf(emptyDirPod("empty")), host.GetPluginDir(fake.DefaultPluginName)+"/mounts/x"
		ofWanted := filepath.Join(filepath.Dir(n.pathOf(wanted)), "foreign")
		outside := filepath.Join(n.root, "outside")
		for _, dir := range []string{orphan, staged, ofWanted, outside, filepath.Join(n.pathOf(wanted), "inside")} {
			mountTmpfs(t, dir)
		}
		require.NoError(t, os.MkdirAll(full, 0o700))
		require.NoError(t, os.MkdirAll(empty, 0o700))
		plain, used := host.GetPluginDir(fake.DefaultPluginName)+"/mounts/plain", host.GetVolumeDevicePluginDir(fake.DefaultPluginName)+"/used"
		require.NoError(t, os.MkdirAll(plain, 0o700))
		require.NoError(t, os.MkdirAll(used, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(used, "data"), []byte("precious"), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(full, "data"), []byte("precious"), 0o600))

		m, stop := n.start(t)
		paths := func() []string {
			var paths []string
			for _, o := range m.Status().Orphans {
				paths = append(paths, o.Path)
			}
			return paths
		}
		eventually(t, m, func() bool { return len(paths()) == 7 })
		assert.ElementsMatch(t, []string{orphan, staged, ofWanted, full, empty, plain, used}, paths())
		require.NoError(t, m.AddPod(t.Context(), wanted))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), wanted))
		for _, path := range []string{orphan, staged, ofWanted} {
			assert.NotZero(t, idAt(t, path), "nothing goes before all pods are known")
		}
		m.PodsComplete()
		if policy == OrphansAreRemoved {
			eventually(t, m, func() bool { return len(paths()) == 3 })
			assert.ElementsMatch(t, []string{ofWanted, full, used}, paths(), "what may be of a pod that runs stays, and what is not empty")
			for _, path := range []string{orphan, staged, empty, plain} {
				assert.NoDirExists(t, path)
			}
			eventually(t, m, func() bool {
				_, err := os.Stat(filepath.Join(host.GetPodsDir(), "uid-empty"))
				return os.IsNotExist(err)
			})
		} else {
			assert.Len(t, paths(), 7)
			assert.DirExists(t, plain)
			assert.NotZero(t, idAt(t, orphan))
			assert.NotZero(t, idAt(t, staged))
		}
		stop()
		assert.FileExists(t, filepath.Join(full, "data"))
		assert.FileExists(t, filepath.Join(used, "data"))
		assert.NotZero(t, idAt(t, outside))
		assert.NotZero(t, idAt(t, ofWanted))
		assert.NotZero(t, idAt(t, filepath.Join(n.pathOf(wanted), "inside")))
		n.takeAway(t, wanted)
	}
}

// TestOrphansAreRemovedOnlyWhereTheManagerMounts: what an operator has mounted anywhere else below the root stays, and so do his
// directories. He is told.
func TestOrphansAreRemovedOnlyWhereTheManagerMounts(t *testing.T) {
	n := knownNode(t, true)
	n.options.Orphans = OrphansAreRemoved
	require.NoError(t, n.plugins.InitPlugins(t.Context(), loopblock.New(loopblock.Options{}),
		fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})))
	n.leave(t) // Records are complete from then on.
	host := n.plugins.Host()
	pod, plugins := filepath.Join(host.GetPodsDir(), "uid-gone"), host.GetPluginDir("")
	staging := filepath.Join(host.GetPluginDir(loopblock.Name), "mounts")
	var operators []string
	for _, path := range []string{
		filepath.Join(plugins, "volumekit.io"),
		filepath.Join(host.GetPluginDir(loopblock.Name), "images"),
		staging,
		filepath.Join(staging, "disk", "deeper"),
		filepath.Join(host.GetPluginDir("example.com/tmpfs"), "mounts", "never-staged"),
		filepath.Join(host.GetPluginDir("example.com/unknown"), "mounts", "disk"),
		filepath.Join(plugins, "backup"),
		filepath.Join(host.GetVolumeDevicePluginDir(loopblock.Name), "disk", "uid-gone", "deeper"),
		pod,
		filepath.Join(pod, "volumes"),
		filepath.Join(pod, "volumes", "example.com~tmpfs"),
		filepath.Join(pod, "volumes", "example.com~tmpfs", "cache", "deeper"),
		filepath.Join(pod, "volumes", "example.com~unknown", "cache"),
		filepath.Join(pod, "plugins", "example.com~tmpfs", "cache"),
		filepath.Join(pod, "logs"),
	} {
		mountTmpfs(t, path)
		operators = append(operators, path)
	}
	empty := filepath.Join(host.GetPluginDir("example.com/unknown"), "mounts", "unmounted")
	require.NoError(t, os.MkdirAll(empty, 0o700))
	before := make(map[string]mount.Identity)
	for _, path := range operators {
		before[path] = idAt(t, path)
	}
	ours := []string{
		filepath.Join(pod, "volumes", "example.com~tmpfs", "ours"),
		filepath.Join(pod, "volume-subpaths", "ours", "main", "0"),
		filepath.Join(staging, "ours"),
		filepath.Join(host.GetVolumeDevicePluginDir(loopblock.Name), "ours", "uid-gone"),
	}
	for _, path := range ours {
		mountTmpfs(t, path)
	}

	m, stop := n.start(t)
	defer stop()
	looked(t, m)
	m.PodsComplete()
	tried := func() bool {
		for _, o := range m.Status().Orphans {
			if o.Err == nil {
				return false
			}
		}
		return len(m.Status().Orphans) > 0
	}
	eventually(t, m, tried)
	// Another process can keep one busy for a moment, then it is tried again.
	eventually(t, m, func() bool { return !m.orphans.HasInUse() })
	for _, path := range ours {
		assert.Zero(t, idAt(t, path), "%s: %+v", path, m.Status().Orphans)
	}
	told := make(map[string]error)
	for _, o := range m.Status().Orphans {
		told[o.Path] = o.Err
	}
	for _, path := range operators {
		assert.Equal(t, before[path], idAt(t, path), path)
		require.ErrorIs(t, told[path], mount.ErrForeign, path)
	}
	assert.DirExists(t, empty)
	require.ErrorIs(t, told[empty], mount.ErrForeign)
}

// takeAway unmounts what a test has left of pods.
func (n realNode) takeAway(t *testing.T, pods ...*v1.Pod) {
	t.Helper()
	mounter := mount.New(mount.Options{})
	for _, pod := range pods {
		_ = mounter.Unmount(t.Context(), filepath.Join(n.pathOf(pod), "inside"), mount.UnmountOptions{})
		require.NoError(t, mounter.Unmount(t.Context(), n.pathOf(pod), mount.UnmountOptions{}))
	}
}

func TestVolumeThatNoPluginKnowsIsAnOrphan(t *testing.T) {
	n := knownNode(t, false)
	pod := emptyDirPod("web")
	n.leave(t, pod)
	require.NoError(t, os.Rename(n.options.RuntimeDir, n.options.RuntimeDir+"-lost"))
	m, stop := n.start(t)
	defer stop()
	eventually(t, m, func() bool { return len(m.Status().Orphans) == 1 })
	o := m.Status().Orphans[0]
	assert.Equal(t, n.pathOf(pod), o.Path)
	assert.Equal(t, pod.UID, o.PodUID)
	assert.True(t, o.Mounted)
	require.ErrorIs(t, o.Err, volume.ErrUnsupported)
	m.PodsComplete()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, m.WaitForNodeEmpty(ended), n.pathOf(pod), "it is not gone")
	require.Error(t, m.WaitForUnmount(ended, pod))
	assert.NotZero(t, idAt(t, n.pathOf(pod)))
	n.takeAway(t, pod)
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
}

// TestMountThatTookThePlaceOfOursBetweenTwoManagersIsLeftAlone is row 18 of the fault matrix across a restart.
func TestMountThatTookThePlaceOfOursBetweenTwoManagersIsLeftAlone(t *testing.T) {
	for _, instead := range []bool{true, false} {
		n := knownNode(t, true)
		pod := emptyDirPod("web")
		n.leave(t, pod)
		path, mounter := n.pathOf(pod), mount.New(mount.Options{})
		if instead {
			require.NoError(t, mounter.Unmount(t.Context(), path, mount.UnmountOptions{}))
		}
		mountTmpfs(t, path)
		foreign := idAt(t, path)

		m, stop := n.start(t)
		m.PodsComplete()
		eventually(t, m, func() bool { return len(m.PodStatus(pod.UID)) == 1 && m.PodStatus(pod.UID)[0].Err != nil })
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, mount.ErrForeign)
		assert.Equal(t, foreign, idAt(t, path))
		unmountForeign(t, path)
		require.NoError(t, m.RemovePod(pod.UID))
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		stop()
		assert.NoDirExists(t, path)
	}
}

// TestRestartTouchesNoMount: all is known again, and every mount is the one that it was.
func TestRestartTouchesNoMount(t *testing.T) {
	n := knownNode(t, true)
	var pods []*v1.Pod
	for _, name := range []string{"a", "b", "c"} {
		pods = append(pods, emptyDirPod(name))
	}
	n.leave(t, pods...)
	before := map[types.UID]mount.Identity{}
	for _, pod := range pods {
		before[pod.UID] = idAt(t, n.pathOf(pod))
	}
	m, stop := n.start(t)
	for _, pod := range pods {
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.Equal(t, before[pod.UID], idAt(t, n.pathOf(pod)))
		own := m.watch.MountAt(n.pathOf(pod))
		require.NotNil(t, own)
		assert.Equal(t, before[pod.UID].UniqueID, own.UniqueID)
	}
	m.PodsComplete()
	for _, pod := range pods {
		require.NoError(t, m.RemovePod(pod.UID))
	}
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	stop()
}

func TestSecondManagerOnOneRootIsRefused(t *testing.T) {
	n := newRealNode(t)
	require.NoError(t, os.MkdirAll(filepath.Join(n.root, "lib"), 0o700))
	m, stop := n.start(t)
	other := n.options
	other.RuntimeDir, other.StateDir = filepath.Join(n.root, "run2"), filepath.Join(n.root, "state2")
	looked(t, m)
	second, err := New(n.plugins, other)
	require.NoError(t, err)
	err = second.Run(t.Context())
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorContains(t, err, filepath.Join(n.root, "lib"))
	stop()
	third, err := New(n.plugins, other)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, third.Run(ctx))
}

// TestSecondManagerOnARootThatDoesNotExistYetIsRefused: with records elsewhere, and without any. The first one's volumes stay.
func TestSecondManagerOnARootThatDoesNotExistYetIsRefused(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		n := newRealNode(t)
		if !recorded {
			n.options.RuntimeDir, n.options.StateDir = "", ""
		}
		p := newProber()
		n.options.Prober = p
		lib := filepath.Join(n.root, "lib")
		require.NoDirExists(t, lib)
		first, stop := n.start(t)
		p.errs <- errors.New("the first manager runs, and has done nothing yet")
		for _, run := range []string{filepath.Join(n.root, "run2"), ""} {
			o := n.options
			begun := newProber()
			o.RuntimeDir, o.StateDir, o.Prober = run, "", begun
			second, err := New(n.plugins, o)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- second.Run(ctx) }()
			select {
			case err = <-ended:
			case begun.errs <- errors.New("the second manager runs, too"):
			}
			cancel()
			require.ErrorIs(t, err, volume.ErrInUse)
			require.ErrorContains(t, err, lib)
		}
		pod := emptyDirPod("first")
		require.NoError(t, first.AddPod(t.Context(), pod))
		require.NoError(t, first.WaitForAttachAndMount(t.Context(), pod))
		stop()
		third, stop := n.start(t) // The root is free, and not empty.
		require.NoError(t, third.AddPod(t.Context(), pod))
		require.NoError(t, third.WaitForAttachAndMount(t.Context(), pod))
		require.NoError(t, third.RemovePod(pod.UID))
		require.NoError(t, third.WaitForUnmount(t.Context(), pod))
		stop()
	}
}

// TestARootThatCannotBeMadeIsNoRoot: it could not be locked either.
func TestARootThatCannotBeMadeIsNoRoot(t *testing.T) {
	n := newRealNode(t)
	require.NoError(t, os.WriteFile(filepath.Join(n.root, "lib"), nil, 0o600))
	m, err := New(n.plugins, n.options)
	require.NoError(t, err)
	require.ErrorContains(t, m.Run(t.Context()), filepath.Join(n.root, "lib"))
	require.NoError(t, os.Remove(filepath.Join(n.root, "lib")))
	_, stop := n.start(t)
	stop()
}

// TestAnOrphanThatIsInUseIsRemovedWhenItIsFree: it is told of with its error until then.
func TestAnOrphanThatIsInUseIsRemovedWhenItIsFree(t *testing.T) {
	n := knownNode(t, true)
	n.options.Orphans = OrphansAreRemoved
	n.leave(t)
	host := n.plugins.Host()
	pod := filepath.Join(host.GetPodsDir(), "uid-gone")
	orphan := filepath.Join(pod, "volumes", "example.com~tmpfs", "cache")
	mountTmpfs(t, orphan)
	file, err := os.Create(filepath.Join(orphan, "open"))
	require.NoError(t, err)
	defer file.Close()

	m, stop := n.start(t)
	defer stop()
	m.PodsComplete()
	eventually(t, m, func() bool { return m.orphans.HasInUse() })
	found := m.Status().Orphans
	require.Len(t, found, 1)
	require.Equal(t, orphan, found[0].Path)
	require.ErrorIs(t, found[0].Err, unix.EBUSY)
	assert.NotZero(t, idAt(t, orphan))

	require.NoError(t, file.Close())
	eventually(t, m, func() bool {
		_, err := os.Lstat(pod)
		return os.IsNotExist(err) && len(m.Status().Orphans) == 0
	})
}
