package volumemanager

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// tmpfsPlugin serves emptyDir volumes in memory with the kernel's tmpfs, for the test of the whole line on real mounts.
type tmpfsPlugin struct {
	mounter mount.Interface
	host    volume.VolumeHost
}

func (p *tmpfsPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}
func (p *tmpfsPlugin) GetPluginName() string                           { return "example.com/tmpfs" }
func (p *tmpfsPlugin) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }
func (p *tmpfsPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.EmptyDir != nil
}
func (p *tmpfsPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.volume(spec.Name(), pod.UID), nil
}
func (p *tmpfsPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	return p.volume(name, uid), nil
}
func (p *tmpfsPlugin) volume(name string, uid types.UID) *tmpfsVolume {
	return &tmpfsVolume{mounter: p.mounter, path: p.host.GetPodVolumeDir(uid, p.GetPluginName(), name)}
}

type tmpfsVolume struct {
	volume.MetricsNil
	mounter mount.Interface
	path    string
}

func (v *tmpfsVolume) GetPath() string                  { return v.path }
func (v *tmpfsVolume) GetAttributes() volume.Attributes { return volume.Attributes{Managed: true} }
func (v *tmpfsVolume) SetUp(ctx context.Context, a volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.path, a)
}
func (v *tmpfsVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.path) }
func (v *tmpfsVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if mounted, err := v.mounter.IsMountPoint(ctx, dir); err == nil && mounted {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	return v.mounter.Mount(ctx, mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: []string{"size=1m", "nosuid", "nodev"}})
}

func (v *tmpfsVolume) TearDownAt(ctx context.Context, dir string) error {
	mounted, err := v.mounter.IsMountPoint(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && mounted {
		err = v.mounter.Unmount(ctx, dir, mount.UnmountOptions{})
	}
	if err != nil {
		return err
	}
	return v.mounter.RemoveTarget(ctx, dir)
}

// realNode is a node on real mounts.
type realNode struct {
	root    string
	plugins *volume.VolumePluginMgr
	options Options
}

func newRealNode(t testing.TB) realNode {
	t.Helper()
	mounttest.RequireMounts(t)
	mounter := mount.New(mount.Options{})
	root := t.TempDir()
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(root, "lib"), NodeName: testNode})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), &tmpfsPlugin{mounter: mounter}))
	return realNode{root: root, plugins: plugins, options: Options{
		RuntimeDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state"), Resync: -1, WaitTimeout: time.Minute,
	}}
}

// start runs a manager until stop.
func (n realNode) start(t testing.TB) (m *Manager, stop func()) {
	t.Helper()
	m, err := New(n.plugins, n.options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return m, func() {
		cancel()
		patience := time.NewTimer(time.Minute)
		defer patience.Stop()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-patience.C:
			require.Fail(t, "Run has not returned a minute after its context ended")
		}
	}
}

func emptyDirPod(name string) *v1.Pod {
	pod := podOf(name, "-cache")
	limit := resource.MustParse("1Mi")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}}
	return pod
}

func TestRealMountsSurviveTheManagerAndAreTakenAwayByTheNext(t *testing.T) {
	n := newRealNode(t)
	kept, gone := emptyDirPod("kept"), emptyDirPod("gone")
	first, stop := n.start(t)
	for _, pod := range []*v1.Pod{kept, gone} {
		require.NoError(t, first.AddPod(t.Context(), pod))
		require.NoError(t, first.WaitForAttachAndMount(t.Context(), pod))
	}
	path := first.GetMountedVolumesForPod(volume.GetUniquePodName(kept))["cache"].Path
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), []byte("kept"), 0o600))
	stop()

	second, stop := n.start(t)
	require.NoError(t, second.AddPod(t.Context(), kept))
	require.NoError(t, second.WaitForAttachAndMount(t.Context(), kept))
	content, err := os.ReadFile(filepath.Join(path, "f"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content), "the mount was adopted, not made anew")
	second.PodsComplete()
	require.NoError(t, second.WaitForUnmount(t.Context(), gone))
	require.NoError(t, second.RemovePod(kept.UID))
	require.NoError(t, second.WaitForNodeEmpty(t.Context()))
	stop()

	assert.NoDirExists(t, path)
	for _, dir := range []string{n.options.RuntimeDir, n.options.StateDir} {
		assert.Empty(t, recordsIn(t, dir))
	}
}

func TestDirectoriesOfAPodThatIsGoneGoUnlessTheyAreInUse(t *testing.T) {
	n := newRealNode(t)
	m, stop := n.start(t)
	defer stop()
	m.PodsComplete()
	plain, shared := emptyDirPod("plain"), emptyDirPod("shared")
	for _, pod := range []*v1.Pod{plain, shared} {
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	}
	pods := n.plugins.Host().GetPodsDir()
	foreign := filepath.Join(pods, string(shared.UID), "etc-hosts")
	require.NoError(t, os.WriteFile(foreign, []byte("not ours"), 0o600))

	for _, pod := range []*v1.Pod{plain, shared} {
		require.NoError(t, m.RemovePod(pod.UID))
		require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	}
	assert.NoDirExists(t, filepath.Join(pods, string(plain.UID)))
	assert.FileExists(t, foreign)
	assert.NoDirExists(t, filepath.Join(pods, string(shared.UID), "volumes"))
}
