package loopblock_test

import (
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

const nodeName = "node-1"

// node is a node with the plugin, in a directory of its own.
type node struct {
	t       testing.TB
	root    string
	images  string
	mounter *mount.Mounter
	plugin  *loopblock.Plugin
}

func newNode(t testing.TB) *node {
	t.Helper()
	mounttest.RequireRoot(t)
	requireTool(t, "ext4")
	n := &node{t: t, root: filepath.Join(t.TempDir(), "node"), mounter: mount.New(mount.Options{})}
	n.images = filepath.Join(n.root, "images")
	n.plugin = n.pluginOver(n.mounter)
	return n
}

// pluginOver returns a new value of the plugin, as after a restart.
func (n *node) pluginOver(mounter mount.Interface) *loopblock.Plugin {
	return n.pluginWith(loopblock.Options{Mounter: mounter})
}

func (n *node) pluginWith(options loopblock.Options) *loopblock.Plugin {
	n.t.Helper()
	options.BaseDir = n.images
	plugin := loopblock.New(options)
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: nodeName})
	require.NoError(n.t, err)
	require.NoError(n.t, plugin.Init(n.t.Context(), host))
	return plugin
}

// claimOf asks for 32 MiB with the given parameters of its class, as key, value, key, value.
func claimOf(name string, parameters ...string) volume.VolumeOptions {
	options := volume.VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		PVName:                        name,
		PVC: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("32Mi")},
				},
			},
		},
		Parameters: map[string]string{},
	}
	for pair := range slices.Chunk(parameters, 2) {
		options.Parameters[pair[0]] = pair[1]
	}
	return options
}

func (n *node) tryProvision(ctx context.Context, options volume.VolumeOptions) (*volume.Spec, error) {
	n.t.Helper()
	provisioner, err := n.plugin.NewProvisioner(options)
	require.NoError(n.t, err)
	pv, err := provisioner.Provision(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	return volume.NewSpecFromPersistentVolume(pv, false), nil
}

func (n *node) provision(name string, parameters ...string) *volume.Spec {
	n.t.Helper()
	spec, err := n.tryProvision(n.t.Context(), claimOf(name, parameters...))
	require.NoError(n.t, err)
	return spec
}

func (n *node) image(handle string) string { return filepath.Join(n.images, handle+".img") }

func (n *node) attacher() volume.Attacher {
	attacher, err := n.plugin.NewAttacher()
	require.NoError(n.t, err)
	return attacher
}

func (n *node) attach(spec *volume.Spec) string {
	n.t.Helper()
	device, err := n.attacher().Attach(n.t.Context(), spec, nodeName)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = n.tryDetach(context.WithoutCancel(n.t.Context()), spec) })
	return device
}

func (n *node) tryDetach(ctx context.Context, spec *volume.Spec) error {
	detacher, err := n.plugin.NewDetacher()
	require.NoError(n.t, err)
	name, err := n.plugin.GetVolumeName(spec)
	require.NoError(n.t, err)
	return detacher.Detach(ctx, name, nodeName)
}

func (n *node) stagingPath(spec *volume.Spec) string {
	path, err := n.attacher().GetDeviceMountPath(spec)
	require.NoError(n.t, err)
	return path
}

func (n *node) tryStage(spec *volume.Spec, device string) error {
	n.cleanMount(n.stagingPath(spec))
	return n.attacher().MountDevice(n.t.Context(), spec, device, n.stagingPath(spec), volume.DeviceMounterArgs{})
}

// stage attaches and stages.
func (n *node) stage(spec *volume.Spec) string {
	n.t.Helper()
	device := n.attach(spec)
	require.NoError(n.t, n.tryStage(spec, device))
	return n.stagingPath(spec)
}

// cleanMount unmounts path at the end of a test that failed midway.
func (n *node) cleanMount(path string) {
	n.t.Cleanup(func() {
		_ = mount.UnmountPath(context.WithoutCancel(n.t.Context()), n.mounter, path, mount.UnmountOptions{})
	})
}

func (n *node) mounterOf(spec *volume.Spec, podUID types.UID) volume.Mounter {
	n.t.Helper()
	mounter, err := n.plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: podUID}})
	require.NoError(n.t, err)
	return mounter
}

func (n *node) setUp(spec *volume.Spec, podUID types.UID) string {
	n.t.Helper()
	mounter := n.mounterOf(spec, podUID)
	require.NoError(n.t, mounter.SetUp(n.t.Context(), volume.MounterArgs{}))
	n.cleanMount(mounter.GetPath())
	return mounter.GetPath()
}

func (n *node) tearDown(spec *volume.Spec, podUID types.UID) {
	n.t.Helper()
	unmounter, err := n.plugin.NewUnmounter(spec.Name(), podUID)
	require.NoError(n.t, err)
	require.NoError(n.t, unmounter.TearDown(n.t.Context()))
}

// release unstages and detaches.
func (n *node) release(spec *volume.Spec) {
	n.t.Helper()
	unmounter, err := n.plugin.NewDeviceUnmounter()
	require.NoError(n.t, err)
	require.NoError(n.t, unmounter.UnmountDevice(n.t.Context(), n.stagingPath(spec)))
	require.NoError(n.t, n.tryDetach(n.t.Context(), spec))
}

func (n *node) tryDelete(spec *volume.Spec) error {
	deleter, err := n.plugin.NewDeleter(spec)
	require.NoError(n.t, err)
	return deleter.Delete(n.t.Context())
}

// mountsAt returns what is mounted at path.
func (n *node) mountsAt(path string) []mount.MountPoint {
	n.t.Helper()
	table, err := n.mounter.List(n.t.Context())
	require.NoError(n.t, err)
	return slices.DeleteFunc(slices.Clone(table), func(m mount.MountPoint) bool { return m.Path != path })
}

// sum is the hash of the first 32 MiB, the size of most images here.
func sum(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, io.LimitReader(file, 32<<20))
	require.NoError(t, err)
	return hash.Sum(nil)
}

func write(t testing.TB, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func assertContent(t testing.TB, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, string(got))
}
