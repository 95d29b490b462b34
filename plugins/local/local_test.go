package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

var pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}}

// pvOf returns a volume of the node of the tests.
func pvOf(path string, options ...string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: v1.PersistentVolumeSpec{
			MountOptions:           options,
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"node-1"}}},
			}}}},
		},
	}
}

func specOf(pv *v1.PersistentVolume) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func blockSpec(path string) *volume.Spec {
	pv, mode := pvOf(path), v1.PersistentVolumeBlock
	pv.Spec.VolumeMode = &mode
	return specOf(pv)
}

// newPlugin returns the plugin of a node whose root is a directory of the test.
func newPlugin(t *testing.T, options Options) (*Plugin, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "node")
	return pluginAt(t, root, options), root
}

// pluginAt is the plugin after a restart.
func pluginAt(t *testing.T, root string, options Options) *Plugin {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node-1"})
	require.NoError(t, err)
	plugin := New(options)
	require.NoError(t, volume.NewVolumePluginMgr(host).InitPlugins(t.Context(), plugin))
	return plugin
}

func TestBadVolumesAreRefused(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	nowhere := pvOf("/srv/disk")
	nowhere.Spec.NodeAffinity = nil
	anywhere := pvOf("/srv/disk")
	anywhere.Spec.NodeAffinity.Required = nil
	for says, pv := range map[string]*v1.PersistentVolume{
		`path ""`:                pvOf(""),
		`path "srv/disk"`:        pvOf("srv/disk"),
		"..":                     pvOf("/srv/../etc"),
		"NUL":                    pvOf("/srv/\x00"),
		"name the node that has": nowhere,
		"it has no nodeAffinity": anywhere,
		"holds a comma":          pvOf("/srv/disk", "a,b"),
	} {
		_, err := plugin.NewMounter(specOf(pv), pod)
		require.ErrorIs(t, err, volume.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
	_, err := plugin.NewMounter(specOf(pvOf("/srv/disk")), nil)
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.ErrorIs(t, New(Options{Protected: []string{"here"}}).Init(t.Context(), plugin.host), volume.ErrInvalid)
}

func TestTheModeDecidesWhatAVolumeIs(t *testing.T) {
	plugin, root := newPlugin(t, Options{})
	block, filesystem := blockSpec("/dev/sdz"), specOf(pvOf("/dev/sdz"))
	for spec, staged := range map[*volume.Spec]bool{block: false, filesystem: true} {
		can, err := plugin.CanDeviceMount(spec)
		require.NoError(t, err)
		assert.Equal(t, staged, can)
	}
	_, err := plugin.NewMounter(block, pod)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	_, err = (&stager{plugin}).GetDeviceMountPath(block)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	_, err = plugin.NewBlockVolumeMapper(filesystem, pod)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	block.ReadOnly = true
	_, err = plugin.NewBlockVolumeMapper(block, pod)
	require.ErrorIs(t, err, volume.ErrUnsupported, "a bind cannot keep that pod from writing")

	staging, err := (&stager{plugin}).GetDeviceMountPath(filesystem)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(root, "plugins/kubernetes.io/local-volume/mounts/disk"), staging)
}

func TestPathsOfADevice(t *testing.T) {
	plugin, root := newPlugin(t, Options{})
	mapper, err := plugin.NewBlockVolumeMapper(blockSpec("/dev/sdz"), pod)
	require.NoError(t, err)
	unmapper, err := plugin.NewBlockVolumeUnmapper("disk", pod.UID)
	require.NoError(t, err)
	for _, v := range []volume.BlockVolume{mapper, unmapper} {
		path, err := v.GetGlobalMapPath(blockSpec(""))
		require.NoError(t, err, "the path is not known after a restart")
		assert.Equal(t, filepath.Join(root, "plugins/kubernetes.io/local-volume/volumeDevices/disk"), path)
		dir, name := v.GetPodDeviceMapPath()
		assert.Equal(t, filepath.Join(root, "pods/pod-1/volumeDevices/kubernetes.io~local-volume/disk"), filepath.Join(dir, name))
	}
	_, err = plugin.NewBlockVolumeUnmapper("disk", "")
	require.NoError(t, err, "for the device itself")
	for _, names := range [][2]string{{"../disk", "pod-1"}, {"disk", "../pod-1"}, {"", "pod-1"}} {
		_, err = plugin.NewBlockVolumeUnmapper(names[0], types.UID(names[1]))
		require.ErrorIs(t, err, volume.ErrInvalid, names)
	}
}

func TestConstructBlockVolumeSpec(t *testing.T) {
	plugin, root := newPlugin(t, Options{})
	require.NoError(t, os.MkdirAll(root, 0o755))
	link := filepath.Join(root, "link")
	construct := func(target string) (*volume.Spec, error) {
		require.NoError(t, os.Symlink(target, link))
		spec, err := plugin.ConstructBlockVolumeSpec(pod.UID, "disk", link)
		require.NoError(t, os.Remove(link))
		return spec, err
	}
	maps := plugin.host.GetVolumeDevicePluginDir(Name)
	spec, err := construct(filepath.Join(maps, "disk", "pod-1"))
	require.NoError(t, err)
	mode, err := volume.GetVolumeMode(spec)
	require.NoError(t, err)
	assert.Equal(t, v1.PersistentVolumeBlock, mode)
	name, err := plugin.GetVolumeName(spec)
	require.NoError(t, err)
	assert.Equal(t, "disk", name)
	for _, target := range []string{filepath.Join(maps, "other", "pod-1"), filepath.Join(maps, "disk", "pod-2"), "/dev/sdz"} {
		_, err := construct(target)
		require.ErrorIs(t, err, volume.ErrInvalid, target)
	}
	_, err = plugin.ConstructBlockVolumeSpec(pod.UID, "disk", root)
	require.ErrorIs(t, err, volume.ErrInvalid, "no link")
	_, err = plugin.ConstructBlockVolumeSpec(pod.UID, "../disk", link)
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestStagingPathsOfOthersAreRefused(t *testing.T) {
	plugin, root := newPlugin(t, Options{})
	for _, path := range []string{root, plugin.mountsDir(), plugin.mountsDir() + "/a/b", plugin.mountsDir() + "/..", "/etc"} {
		require.ErrorIs(t, (&stager{plugin}).UnmountDevice(t.Context(), path), volume.ErrInvalid, path)
	}
	err := (&stager{plugin}).MountDevice(t.Context(), specOf(pvOf(t.TempDir())), "", "/mnt", volume.DeviceMounterArgs{})
	require.ErrorIs(t, err, volume.ErrInvalid)
}
