package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
)

// bindPlugin binds the host path of a volume, or mounts the device there. Its teardown is a naive one: it looks into the volume first, and does not care
// about its context.
type bindPlugin struct {
	mounter *mount.Mounter
	host    volume.VolumeHost
	// unmeasured volumes have no figures.
	unmeasured bool
	// fsType is the filesystem on devices; empty means ext4.
	fsType string
}

func (p *bindPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}
func (p *bindPlugin) GetPluginName() string                           { return "example.com/bind" }
func (p *bindPlugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }
func (p *bindPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.HostPath != nil
}

func (p *bindPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	v := p.volume(spec.Name(), pod.UID)
	v.source = spec.Volume.HostPath.Path
	return v, nil
}

func (p *bindPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	return p.volume(name, uid), nil
}

func (p *bindPlugin) volume(name string, uid types.UID) *bindVolume {
	path := p.host.GetPodVolumeDir(uid, p.GetPluginName(), name)
	v := &bindVolume{mounter: p.mounter, path: path, fsType: cmp.Or(p.fsType, "ext4"), MetricsProvider: volume.MetricsNil{}}
	if !p.unmeasured {
		v.MetricsProvider = volume.NewMetricsStatFS(path)
	}
	return v
}

type bindVolume struct {
	volume.MetricsProvider
	mounter      *mount.Mounter
	source, path string
	fsType       string
}

func (v *bindVolume) GetPath() string                  { return v.path }
func (v *bindVolume) GetAttributes() volume.Attributes { return volume.Attributes{} }
func (v *bindVolume) SetUp(ctx context.Context, a volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.path, a)
}
func (v *bindVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.path) }
func (v *bindVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if mounted, err := v.mounter.IsMountPoint(ctx, dir); err == nil && mounted {
		return nil
	}
	request := mount.Request{Source: v.source, Target: dir, Options: []string{"bind", "nosuid", "nodev"}}
	if strings.HasPrefix(v.source, "/dev/") {
		request.FSType, request.Options = v.fsType, []string{"nosuid", "nodev"}
	}
	return v.mounter.Mount(ctx, request)
}

func (v *bindVolume) TearDownAt(ctx context.Context, dir string) error {
	if mounted, err := v.mounter.IsMountPoint(ctx, dir); err == nil && mounted {
		_, _ = os.ReadDir(dir)
	}
	return mount.UnmountPath(ctx, v.mounter, dir, mount.UnmountOptions{})
}

// newFaultyNode returns a node with a volume whose server is the test.
func newFaultyNode(t *testing.T) (*watchedNode, *mounttest.FUSE, *v1.Pod) {
	t.Helper()
	n := newWatchedNode(t)
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"f": "content"}})
	require.NoError(t, n.plugins.InitPlugins(t.Context(), &bindPlugin{mounter: n.mounter}))
	n.options.Backoff.Initial = time.Millisecond
	pod := podOf("faulty", "-data")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: f.Path()}}
	return n, f, pod
}

// newHungNode is newFaultyNode where the deadline of the volume's teardown is short.
func newHungNode(t *testing.T) (*watchedNode, *mounttest.FUSE, *v1.Pod) {
	t.Helper()
	n, f, pod := newFaultyNode(t)
	n.options.PluginTimeouts = map[string]operationexecutor.Timeouts{"example.com/bind": {Unmount: 100 * time.Millisecond}}
	return n, f, pod
}

// hangs removes the pod and returns when its teardown hangs.
func (n *watchedNode) hangs(f *mounttest.FUSE, pod *v1.Pod) {
	n.t.Helper()
	f.Hang(mounttest.FUSEAny)
	require.NoError(n.t, n.m.RemovePod(pod.UID))
	f.Await(mounttest.FUSEAny)
}

// hungOf returns the condition that tells what hangs.
func hungOf(s VolumeStatus) Condition {
	return s.Conditions[slices.IndexFunc(s.Conditions, func(c Condition) bool { return c.Reason == ReasonHung })]
}

func TestHungTeardownDelaysNoOtherVolumeAndIsShown(t *testing.T) {
	t.Parallel() // each waits for the grace of the executor
	n, f, pod := newHungNode(t)
	m, stop := n.start(t)
	n.m = m
	m.PodsComplete()
	path := n.add(pod)
	n.hangs(f, pod)
	s := n.until(pod, has(ReasonHung))
	assert.Contains(t, hungOf(s).Message, "TearDown")
	assert.False(t, hungOf(s).Since.IsZero())
	assert.Equal(t, volume.HealthAbnormal, hungOf(s).Status)
	assert.Len(t, m.Hung(), 1)

	other := emptyDirPod("other")
	n.add(other)
	m.Status()
	m.Stats(0)
	n.remove(other)
	found, err := n.mounter.Lookup(t.Context(), path)
	require.NoError(t, err, "it is neither aborted nor detached: Options.HungUnmount is not set")
	assert.Equal(t, path, found.Path)

	f.Heal()
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	assert.NoDirExists(t, path)
	stop()
}

func TestRunEndsBesideAHungTeardownAndNamesIt(t *testing.T) {
	t.Parallel() // each waits for the grace of the executor
	n, f, pod := newHungNode(t)
	m, err := New(n.plugins, n.options)
	require.NoError(t, err)
	n.m = m
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	m.PodsComplete()
	path := n.add(pod)
	n.hangs(f, pod)
	n.until(pod, has(ReasonHung))
	cancel()
	var left *operationexecutor.WaitError
	require.ErrorAs(t, <-ended, &left)
	assert.Contains(t, left.Error(), "pods/uid-faulty/data")
	changed, unsubscribe := m.changes.Subscribe(changes.AnyPod)
	defer unsubscribe()
	f.Heal()
	for len(m.Hung()) > 0 {
		<-changed
	}
	require.NoError(t, mount.UnmountPath(t.Context(), n.mounter, path, mount.UnmountOptions{}), "the call has ended meanwhile, or not")
}

func TestHungVolumeIsTakenOffByForceWhereTheOptionsSaySo(t *testing.T) {
	t.Parallel() // each waits for the grace of the executor
	n, f, pod := newHungNode(t)
	n.options.HungUnmount.ForceAfter = time.Millisecond
	var stop func()
	n.m, stop = n.start(t)
	n.m.PodsComplete()
	path := n.add(pod)
	n.hangs(f, pod)
	require.NoError(t, n.m.WaitForUnmount(t.Context(), pod))
	_, err := n.mounter.Lookup(t.Context(), path)
	require.ErrorIs(t, err, mount.ErrNotMounted)
	require.NoError(t, n.m.WaitForNodeEmpty(t.Context()), "the call was thrown out, and the plugin has finished")
	assert.NoDirExists(t, path)
	assert.Empty(t, n.m.Hung())
	stop()
	assert.Equal(t, 1, n.events.count(EventHungVolumeUnmounted))
}

func TestHungVolumeIsDetachedWhereTheOptionsSaySo(t *testing.T) {
	t.Parallel() // each waits for the grace of the executor
	n, f, pod := newHungNode(t)
	n.options.HungUnmount.LazyAfter = time.Millisecond
	n.run()
	path := n.add(pod)
	n.hangs(f, pod)
	require.NoError(t, n.m.WaitForUnmount(t.Context(), pod))
	_, err := n.mounter.Lookup(t.Context(), path)
	require.ErrorIs(t, err, mount.ErrNotMounted)
	assert.Len(t, n.m.Hung(), 1, "the call itself hangs on")
	require.Error(t, n.m.executor.Wait(canceled(t)), "so the plugin has not finished")
	f.Heal()
	require.NoError(t, n.m.WaitForNodeEmpty(t.Context()))
	assert.NoDirExists(t, path)
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestForeignMountIsNotTakenOffInPlaceOfAHungOne(t *testing.T) {
	t.Parallel() // each waits for the grace of the executor
	n, f, pod := newHungNode(t)
	n.options.HungUnmount = HungUnmount{ForceAfter: time.Millisecond, LazyAfter: time.Millisecond}
	n.options.PluginTimeouts["example.com/bind"] = operationexecutor.Timeouts{Unmount: time.Second} // time to mount on top
	n.run()
	path := n.add(pod)
	n.hangs(f, pod)
	require.NoError(t, unix.Mount("foreign", path, "tmpfs", 0, "size=64k"))
	require.NoError(t, os.WriteFile(filepath.Join(path, "precious"), nil, 0o600))
	s := n.until(pod, func(s VolumeStatus) bool {
		return has(ReasonHung)(s) && errors.Is(errors.Join(errsOf(s)...), mount.ErrForeign)
	})
	assert.False(t, s.Wanted)
	assert.FileExists(t, filepath.Join(path, "precious"))
	unmountForeign(t, path)
	f.Heal()
	require.NoError(t, n.m.WaitForNodeEmpty(t.Context()), "the hung call has returned too")
}

func errsOf(s VolumeStatus) (errs []error) {
	for _, c := range s.Conditions {
		errs = append(errs, c.Err)
	}
	return errs
}

// TestVolumeWhoseSourceIsDeletedIsStillMounted until its pod is removed.
func TestVolumeWhoseSourceIsDeletedIsStillMounted(t *testing.T) {
	n := newWatchedNode(t)
	require.NoError(t, n.plugins.InitPlugins(t.Context(), &bindPlugin{mounter: n.mounter}))
	n.run()
	source := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.Mkdir(source, 0o750))
	pod := podOf("web", "-data")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: source}}
	path := n.add(pod)
	require.NoError(t, os.Remove(source))
	n.m.watch.ExamineAll(t.Context())
	n.m.watch.Examine(t.Context(), path)
	assert.True(t, isWell(n.m.PodStatus(pod.UID)[0]))
	n.remove(pod)
	assert.NoDirExists(t, path)
	_, err := n.mounter.Lookup(t.Context(), path)
	require.ErrorIs(t, err, mount.ErrNotMounted)
}

// leavingPlugin is a tmpfsPlugin whose teardown leaves its unmount behind, as a mounter does whose umount2 does not return
// in time.
type leavingPlugin struct {
	*tmpfsPlugin
	teardown func(path string) error
}

func (p leavingPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	return leavingVolume{p.volume(name, uid), p.teardown}, nil
}

type leavingVolume struct {
	*tmpfsVolume
	teardown func(path string) error
}

func (v leavingVolume) TearDown(context.Context) error { return v.teardown(v.path) }

// newLeavingNode returns a node whose volumes in memory are torn down by teardown, and taken off as soon as that hangs.
func newLeavingNode(t *testing.T, teardown func(path string) error) *watchedNode {
	t.Helper()
	n := newWatchedNode(t)
	host := n.plugins.Host()
	n.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(t, n.plugins.InitPlugins(t.Context(), leavingPlugin{&tmpfsPlugin{mounter: n.mounter}, teardown}))
	n.options.HungUnmount = HungUnmount{LazyAfter: time.Nanosecond}
	return n
}

// TestEveryTeardownThatIsLeftBehindIsTakenOff also where the plugin itself has left it behind, in which case the executor
// lists it a moment after the operation has told how it ended.
func TestEveryTeardownThatIsLeftBehindIsTakenOff(t *testing.T) {
	done := make(chan struct{})
	n := newLeavingNode(t, func(path string) error {
		return mount.NewAbandonedError("umount2", path, context.DeadlineExceeded, done)
	})
	n.run()
	pods := make([]*v1.Pod, 40)
	for i := range pods {
		pods[i] = emptyDirPod(fmt.Sprintf("pod-%d", i))
		n.add(pods[i])
		n.remove(pods[i])
	}
	assert.Len(t, n.m.Hung(), len(pods))
	assert.Equal(t, len(pods), n.events.count(EventHungVolumeUnmounted))
	close(done)
	<-n.m.executor.Returned()
}

// TestATeardownThatHangsWhileNothingIsMountedAnyMore counts as done for the pod, and no event says that a mount was unmounted.
func TestATeardownThatHangsWhileNothingIsMountedAnyMore(t *testing.T) {
	done := make(chan struct{})
	n := newLeavingNode(t, func(path string) error {
		return errors.Join(unix.Unmount(path, 0), mount.NewAbandonedError("umount2", path, context.DeadlineExceeded, done))
	})
	n.options.HungUnmount = HungUnmount{ForceAfter: time.Hour}
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	n.remove(pod)
	_, err := n.mounter.Lookup(t.Context(), path)
	require.ErrorIs(t, err, mount.ErrNotMounted)
	assert.Len(t, n.m.Hung(), 1)
	assert.Zero(t, n.events.count(EventHungVolumeUnmounted))
	close(done)
	<-n.m.executor.Returned()
}
