package volumemanager

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
)

// containerNode is a node on real mounts with one pod, whose volume "cache" is a tmpfs.
type containerNode struct {
	realNode
	t       *testing.T
	mounter *mount.Mounter
	manager *Manager
	stop    func()
	pod     *v1.Pod
}

// newContainerNode returns a node whose pod is ready.
func newContainerNode(t *testing.T, mounts ...v1.VolumeMount) *containerNode {
	t.Helper()
	n := &containerNode{realNode: newRealNode(t), t: t, mounter: mount.New(mount.Options{}), pod: emptyDirPod("web")}
	n.options.Mounter = n.mounter
	n.options.Backoff = operationexecutor.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond}
	for i := range mounts {
		mounts[i].Name = "cache"
	}
	n.pod.Spec.Containers[0].VolumeMounts = mounts
	n.restart()
	require.NoError(t, n.manager.AddPod(t.Context(), n.pod))
	n.ready()
	return n
}

// restart starts a new manager, which knows nothing but what is on disk.
func (n *containerNode) restart() {
	n.t.Helper()
	if n.stop != nil {
		n.stop()
	}
	n.manager, n.stop = n.start(n.t)
	n.t.Cleanup(n.end)
}

// end takes everything away and stops the manager.
func (n *containerNode) end() {
	if n.stop == nil {
		return
	}
	n.stop()
	n.stop = nil
}

func (n *containerNode) ready() {
	n.t.Helper()
	require.NoError(n.t, n.manager.WaitForAttachAndMount(n.t.Context(), n.pod))
}

// volumeDir is where the volume is.
func (n *containerNode) volumeDir() string {
	n.t.Helper()
	return n.manager.GetMountedVolumesForPod(volume.GetUniquePodName(n.pod))["cache"].Path
}

func (n *containerNode) podDir() string {
	return filepath.Join(n.plugins.Host().GetPodsDir(), string(n.pod.UID))
}

func (n *containerNode) write(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.volumeDir(), name)
	require.NoError(n.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(n.t, os.WriteFile(path, []byte(content), 0o644))
}

func (n *containerNode) mounts() ContainerVolumes {
	n.t.Helper()
	volumes, err := n.manager.ContainerMounts(n.t.Context(), n.pod, "main")
	require.NoError(n.t, err)
	return volumes
}

func (n *containerNode) refused() error {
	n.t.Helper()
	_, err := n.manager.ContainerMounts(n.t.Context(), n.pod, "main")
	require.Error(n.t, err)
	return err
}

// mounted returns what is mounted in the pod's directory, relative to it.
func (n *containerNode) mounted() []string {
	n.t.Helper()
	table, err := n.mounter.List(n.t.Context())
	require.NoError(n.t, err)
	var paths []string
	for _, m := range table {
		if path, ok := strings.CutPrefix(m.Path, n.podDir()+"/"); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

// remove removes the pod, and checks that nothing is left of it.
func (n *containerNode) remove() {
	n.t.Helper()
	n.manager.PodsComplete()
	require.NoError(n.t, n.manager.RemovePod(n.pod.UID))
	n.isGone()
}

func (n *containerNode) isGone() {
	n.t.Helper()
	require.NoError(n.t, n.manager.WaitForNodeEmpty(n.t.Context()))
	assert.Empty(n.t, n.mounted())
	assert.NoDirExists(n.t, n.podDir())
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

// runtime mounts what it is given into a root of its own, as a container runtime does, and takes it away at the end.
func (n *containerNode) runtime(volumes ContainerVolumes) string {
	n.t.Helper()
	root := filepath.Join(n.root, "rootfs")
	for _, m := range volumes.Mounts {
		options := []string{"rbind", "rprivate"}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		target := filepath.Join(root, m.Target)
		require.NoError(n.t, n.mounter.Mount(n.t.Context(), mount.Request{Source: m.Source, Target: target, Options: options}))
		n.t.Cleanup(func() {
			require.NoError(n.t, n.mounter.Unmount(context.Background(), target, mount.UnmountOptions{Lazy: true}))
		})
	}
	return root
}

func TestAContainerSeesItsVolumesAndTheirParts(t *testing.T) {
	n := newContainerNode(t,
		v1.VolumeMount{MountPath: "/srv/conf/app.conf", SubPath: "conf/app.conf", ReadOnly: true},
		v1.VolumeMount{MountPath: "/srv/logs", SubPath: "logs/main"},
		v1.VolumeMount{MountPath: "/srv"},
	)
	n.write("conf/app.conf", "configured")
	require.NoError(t, os.Chmod(n.volumeDir(), 0o771))
	volumes := n.mounts()
	subpaths := filepath.Join(n.podDir(), "volume-subpaths/example.com~tmpfs~cache/main")
	assert.Equal(t, []ContainerMount{
		{Name: "cache", Source: n.volumeDir(), Target: "/srv", Propagation: v1.MountPropagationNone},
		{Name: "cache", Source: filepath.Join(subpaths, "1"), Target: "/srv/logs", Propagation: v1.MountPropagationNone},
		{Name: "cache", Source: filepath.Join(subpaths, "0"), Target: "/srv/conf/app.conf", ReadOnly: true, Propagation: v1.MountPropagationNone},
	}, volumes.Mounts)
	info, err := os.Stat(filepath.Join(n.volumeDir(), "logs/main"))
	require.NoError(t, err, "it was missing, and was made like the volume's root")
	assert.Equal(t, os.FileMode(0o771), info.Mode().Perm())

	t.Run("container", func(t *testing.T) {
		inside := *n
		inside.t = t
		root := inside.runtime(volumes)
		assert.Equal(t, "configured", read(t, filepath.Join(root, "srv/conf/app.conf")))
		require.ErrorIs(t, os.WriteFile(filepath.Join(root, "srv/conf/app.conf"), nil, 0o600), unix.EROFS)
		require.NoError(t, os.WriteFile(filepath.Join(root, "srv/logs/today"), []byte("started"), 0o600))
		assert.Equal(t, "started", read(t, filepath.Join(n.volumeDir(), "logs/main/today")))
		require.ErrorIs(t, os.WriteFile(filepath.Join(subpaths, "0"), nil, 0o600), unix.EROFS, "nor on the host")
	})

	before, err := n.mounter.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, volumes, n.mounts(), "started again, it gets the same")
	after, err := n.mounter.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before, after, "and nothing is mounted anew")

	require.NoError(t, n.manager.ReleaseContainer(t.Context(), n.pod.UID, "main"))
	assert.Len(t, n.mounted(), 1, "the volume alone is left")
	assert.NoDirExists(t, filepath.Join(n.podDir(), "volume-subpaths"))
	assert.Equal(t, "started", read(t, filepath.Join(n.volumeDir(), "logs/main/today")))
	require.NoError(t, n.manager.ReleaseContainer(t.Context(), n.pod.UID, "main"), "twice is no error")
	assert.Equal(t, volumes, n.mounts())
	n.remove()
}

func TestContainersOfAPodAreReleasedOneByOne(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "a"})
	pod := n.pod.DeepCopy()
	pod.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: []v1.VolumeMount{{Name: "cache", MountPath: "/a", SubPathExpr: "$(POD)"}}}}
	pod.Spec.InitContainers[0].Env = []v1.EnvVar{{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	require.NoError(t, n.manager.UpdatePod(t.Context(), pod))
	volumes, err := n.manager.ContainerMounts(t.Context(), pod, "init")
	require.NoError(t, err)
	assert.DirExists(t, filepath.Join(n.volumeDir(), "web"), "the variable is the pod's name")
	source := n.mounts().Mounts[0].Source
	require.NoError(t, n.manager.ReleaseContainer(t.Context(), pod.UID, "init"))
	assert.NoDirExists(t, volumes.Mounts[0].Source)
	assert.DirExists(t, source)
	n.remove()
}

// TestSubpathsGoBeforeTheirVolume: they were not released, and the manager that made them was killed.
func TestSubpathsGoBeforeTheirVolume(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "a"}, v1.VolumeMount{MountPath: "/f", SubPath: "b/f"})
		n.write("b/f", "file")
		n.mounts()
		require.Len(t, n.mounted(), 3)
		if restarted {
			n.restart()
			n.manager.PodsComplete() // The pod was not added: it is to go.
			n.isGone()
		}
		n.remove()
		n.end()
	}
}

func TestAWaitThatBeginsBeforeTheRecordsAreReadDoesNotTakeThemForNothing(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a"})
	n.stop()
	m, err := New(n.plugins, n.options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.WaitForNodeEmpty(ctx), context.Canceled)
	require.ErrorIs(t, m.WaitForUnmount(ctx, n.pod), context.Canceled)
	n.stop = nil
	n.restart()
	n.manager.PodsComplete()
	require.NoError(t, n.manager.WaitForUnmount(t.Context(), podOf("unknown")), "the records were read")
	n.isGone()
}

// TestAMarkWithoutAMountIsCleaned: the manager was killed between the note of what is to be mounted and the mount.
func TestAMarkWithoutAMountIsCleaned(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "a"})
	n.mounts()
	for _, path := range n.mounted() {
		if strings.HasPrefix(path, safepath.SubpathsDir) {
			require.NoError(t, n.mounter.Unmount(t.Context(), filepath.Join(n.podDir(), path), mount.UnmountOptions{}))
		}
	}
	n.restart()
	n.remove()
}

func TestASubpathInUseStopsTheTeardownAndSaysSo(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "a"})
	user, err := os.Open(n.mounts().Mounts[0].Source)
	require.NoError(t, err)
	defer user.Close()
	n.stopsTheTeardown(unix.EBUSY)
	require.ErrorIs(t, n.manager.ReleaseContainer(t.Context(), n.pod.UID, "main"), unix.EBUSY)
	require.NoError(t, user.Close())
	n.isGone()
}

func TestAForeignMountOnASubpathStopsTheTeardownAndStays(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "a"})
	source := n.mounts().Mounts[0].Source
	require.NoError(t, n.mounter.Mount(t.Context(), mount.Request{Source: "foreign", Target: source, FSType: "tmpfs"}))
	n.stopsTheTeardown(mount.ErrForeign)
	found, err := n.mounter.Lookup(t.Context(), source)
	require.NoError(t, err)
	assert.Equal(t, "foreign", found.Source)
	require.NoError(t, unix.Unmount(source, 0)) // the foreign one, which is uppermost
	n.isGone()
}

// stopsTheTeardown removes the pod, and checks that its volume stays for as long as cause is.
func (n *containerNode) stopsTheTeardown(cause error) {
	n.t.Helper()
	volumeDir := n.volumeDir()
	n.manager.PodsComplete()
	require.NoError(n.t, n.manager.RemovePod(n.pod.UID))
	changed, cancel := n.manager.changes.Subscribe(changes.AnyPod)
	defer cancel()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for {
		status := n.manager.PodStatus(n.pod.UID)
		require.Len(n.t, status, 1)
		if status[0].Attempts > 1 && errors.Is(status[0].Err, cause) {
			break
		}
		select {
		case <-changed:
		case <-patience.C:
			require.Fail(n.t, "the status does not tell", "%+v", status)
		}
	}
	mounted, err := n.mounter.IsMountPoint(n.t.Context(), volumeDir)
	require.NoError(n.t, err)
	assert.True(n.t, mounted, "the volume is still there")
}

func TestASubpathThatLeadsOutOfItsVolumeIsRefused(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "link"})
	outside := filepath.Join(n.root, "outside")
	require.NoError(t, os.Mkdir(outside, 0o755))
	link := filepath.Join(n.volumeDir(), "link")
	for name, target := range map[string]string{"absolute": outside, "upwards": "../../../../../outside", "absolute, and yet inside": filepath.Join(n.volumeDir(), "x")} {
		require.NoError(t, os.Symlink(target, link))
		err := n.refused()
		require.ErrorIs(t, err, safepath.ErrEscapes, name)
		assert.NotContains(t, safepath.Public(err), n.root)
		require.NoError(t, os.Remove(link))
	}
	require.NoError(t, os.Mkdir(filepath.Join(n.volumeDir(), "dir"), 0o755))
	require.NoError(t, os.Symlink("dir", link))
	n.write("dir/f", "inside")
	assert.Equal(t, "inside", read(t, filepath.Join(n.mounts().Mounts[0].Source, "f")), "one that stays inside is followed")
	assert.Len(t, n.mounted(), 2)
	n.remove()
}

// TestNoWorkloadSwapsALinkIntoASubpath: a workload replaces a directory by a link to the host and back, as fast as it can.
func TestNoWorkloadSwapsALinkIntoASubpath(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "dir/part"})
	outside := filepath.Join(n.root, "outside")
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "part"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "part/secret"), nil, 0o600))
	n.write("dir/part/public", "")
	require.NoError(t, os.Symlink(outside, filepath.Join(n.volumeDir(), "link")))
	stop := swap(t, filepath.Join(n.volumeDir(), "dir"), filepath.Join(n.volumeDir(), "link"))
	prepared := 0
	for range 200 {
		volumes, err := n.manager.ContainerMounts(t.Context(), n.pod, "main")
		if err != nil {
			require.Truef(t, errors.Is(err, safepath.ErrEscapes) || errors.Is(err, safepath.ErrRaced), "%v", err)
			continue
		}
		prepared++
		assert.NoFileExists(t, filepath.Join(volumes.Mounts[0].Source, "secret"))
		require.NoError(t, n.manager.ReleaseContainer(t.Context(), n.pod.UID, "main"))
	}
	stop()
	t.Logf("%d of 200 calls found the directory", prepared)
	entries, err := os.ReadDir(filepath.Join(outside, "part"))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	n.remove()
}

// swap exchanges two names until stop is called.
func swap(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

func TestASubpathOfAReadOnlyVolume(t *testing.T) {
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/a", SubPath: "there"})
	n.write("there/f", "kept")
	require.NoError(t, n.mounter.Mount(t.Context(), mount.Request{Target: n.volumeDir(), Options: []string{"remount", "bind", "ro"}}))
	source := n.mounts().Mounts[0].Source
	assert.Equal(t, "kept", read(t, filepath.Join(source, "f")))
	require.ErrorIs(t, os.WriteFile(filepath.Join(source, "g"), nil, 0o600), unix.EROFS)

	pod := n.pod.DeepCopy()
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "missing"
	require.NoError(t, n.manager.UpdatePod(t.Context(), pod))
	require.ErrorIs(t, n.refused(), unix.EROFS, "it cannot be made")
	n.remove()
}

func TestPropagationOfASubpathIsThatOfTheMount(t *testing.T) {
	n := newContainerNode(t,
		v1.VolumeMount{MountPath: "/none", SubPath: "a"},
		v1.VolumeMount{MountPath: "/slave", SubPath: "a", MountPropagation: ptr(v1.MountPropagationHostToContainer)},
		v1.VolumeMount{MountPath: "/shared", SubPath: "a"},
	)
	pod := n.pod.DeepCopy()
	pod.Spec.Containers[0].VolumeMounts[2].MountPropagation = ptr(v1.MountPropagationBidirectional)
	require.ErrorIs(t, n.manager.UpdatePod(t.Context(), pod), volume.ErrInvalid, "it is not privileged")
	pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: ptr(true)}
	require.NoError(t, n.manager.UpdatePod(t.Context(), pod))
	require.NoError(t, unix.Mount("", n.volumeDir(), "", unix.MS_SHARED, ""))
	for i, want := range []string{"", "master:", "shared:"} {
		found, err := n.mounter.Lookup(t.Context(), n.mounts().Mounts[i].Source)
		require.NoError(t, err)
		assert.Contains(t, strings.Join(found.Propagation, " "), want)
		if want == "" {
			assert.Empty(t, found.Propagation)
		}
	}
	n.remove()
}

// hostPathPod returns a pod that has a path of the host, as "cache".
func hostPathPod(path string, mounts ...v1.VolumeMount) *v1.Pod {
	pod := podOf("web", "-cache")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}
	for i := range mounts {
		mounts[i].Name = "cache"
	}
	pod.Spec.Containers[0].VolumeMounts = mounts
	return pod
}

// A workload that may write above the path swaps in a link after the set-up has looked.
func TestASubPathOfAHostPathThatLeadsIntoTheNodesRootByNowIsRefused(t *testing.T) {
	mounttest.RequireMounts(t)
	base := t.TempDir()
	dir, kept := filepath.Join(base, "dir"), filepath.Join(base, "kept")
	for _, name := range []string{dir, filepath.Join(kept, "x")} {
		require.NoError(t, os.MkdirAll(name, 0o755))
	}
	link := filepath.Join(base, "link")
	to := func(target string) {
		t.Helper()
		_ = os.Remove(link) // the first time it is not there
		require.NoError(t, os.Symlink(target, link))
	}
	to(dir)
	n := newHostPathNodeOf(t, hostpath.Options{Protected: []string{kept}}, link, v1.VolumeMount{MountPath: "/a", SubPath: "x"})
	root := filepath.Dir(n.plugins.Host().GetPodsDir())
	for _, target := range []string{root, n.podDir(), filepath.Join(root, "pods"), n.root, "/", kept, filepath.Join(kept, "x"), base} {
		to(target)
		require.ErrorIs(t, n.refused(), safepath.ErrOverlap, target)
		assert.Empty(t, n.mounted(), target)
		if target != kept {
			assert.NoDirExists(t, filepath.Join(target, "x"))
		}
	}
	to(dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "x"), 0o755))
	bindAt(t, root, filepath.Join(dir, "x"))
	require.ErrorIs(t, n.refused(), safepath.ErrOverlap, "a mount in the volume")
	require.NoError(t, n.mounter.Unmount(t.Context(), filepath.Join(dir, "x"), mount.UnmountOptions{}))
	require.Len(t, n.mounts().Mounts, 1)
	require.NoError(t, n.manager.ReleaseContainer(t.Context(), n.pod.UID, "main"))
}

func bindAt(t *testing.T, source, target string) {
	t.Helper()
	require.NoError(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

// newHostPathNode returns a node whose pod has a path of the host.
func newHostPathNode(t *testing.T, path string, mounts ...v1.VolumeMount) *containerNode {
	t.Helper()
	return newHostPathNodeOf(t, hostpath.Options{}, path, mounts...)
}

func newHostPathNodeOf(t *testing.T, options hostpath.Options, path string, mounts ...v1.VolumeMount) *containerNode {
	t.Helper()
	mounttest.RequireMounts(t)
	n := &containerNode{t: t, mounter: mount.New(mount.Options{}), pod: hostPathPod(path, mounts...)}
	n.root = t.TempDir()
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(n.root, "lib"), NodeName: testNode})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(host.GetPodsDir(), string(n.pod.UID)), 0o750))
	n.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(t, n.plugins.InitPlugins(t.Context(), hostpath.New(options)))
	n.options = Options{NoRecords: true, Mounter: n.mounter, Resync: -1, WaitTimeout: time.Minute}
	n.restart()
	require.NoError(t, n.manager.AddPod(t.Context(), n.pod))
	n.ready()
	return n
}

func TestSocketsAndFilesOfTheHostAreSources(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer listener.Close()
	n := newHostPathNode(t, filepath.Join(dir, "s"), v1.VolumeMount{MountPath: "/run/s"})
	assert.Equal(t, filepath.Join(dir, "s"), n.mounts().Mounts[0].Source)
	n.remove()

	require.NoError(t, os.Symlink(dir, filepath.Join(n.root, "link")))
	n = newHostPathNode(t, filepath.Join(n.root, "link"), v1.VolumeMount{MountPath: "/run/s", SubPath: "s"})
	info, err := os.Stat(n.mounts().Mounts[0].Source)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket, info.Mode().Type(), "a part of a directory that a link of the host leads to")
	n.remove()
}

func TestAHungVolumeHoldsUpNoContainerForLongerThanItsContext(t *testing.T) {
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"a/f": "content"}})
	n := newHostPathNode(t, f.Path(), v1.VolumeMount{MountPath: "/a", SubPath: "a"}, v1.VolumeMount{MountPath: "/all"})
	f.Hang(mounttest.FUSELookup, "a")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := n.manager.ContainerMounts(ctx, n.pod, "main")
		ended <- err
	}()
	f.Await(mounttest.FUSELookup)
	cancel()
	err := <-ended
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, n.refused(), mount.ErrStuck, "no second call begins beside the lost one")
	assert.Len(t, n.manager.PodStatus(n.pod.UID), 1)
	f.Heal()
	n.untilPrepared()
	n.remove()
}

// untilPrepared calls ContainerMounts until the call that was lost has ended.
func (n *containerNode) untilPrepared() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		_, err := n.manager.ContainerMounts(ctx, n.pod, "main")
		if err == nil {
			return
		}
		require.ErrorIs(n.t, err, mount.ErrStuck)
	}
	require.Fail(n.t, "the lost call does not end")
}

// TestWhoPreparesAHungSubpathIsSentAwayWithItsPod: the teardown does not wait for the caller's context.
func TestWhoPreparesAHungSubpathIsSentAwayWithItsPod(t *testing.T) {
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"a/f": "content"}})
	n := newHostPathNode(t, f.Path(), v1.VolumeMount{MountPath: "/a", SubPath: "a"})
	f.Hang(mounttest.FUSELookup, "a")
	ended := make(chan error, 1)
	go func() {
		_, err := n.manager.ContainerMounts(t.Context(), n.pod, "main")
		ended <- err
	}()
	f.Await(mounttest.FUSELookup)
	n.remove()
	require.ErrorIs(t, <-ended, containers.ErrTakenAway)
	f.Heal()
	assert.Empty(t, n.mounted())
}
