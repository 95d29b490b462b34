package loopblock

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func newBlockPlugin(t *testing.T) (p *Plugin, root string) {
	root = t.TempDir()
	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "n"})
	require.NoError(t, err)
	p = New(Options{})
	require.NoError(t, p.Init(t.Context(), host))
	return p, root
}

func newBlockVolume(handle string) *v1.PersistentVolume {
	pv, mode := newVolume(handle), v1.PersistentVolumeBlock
	pv.Spec.VolumeMode = &mode
	return pv
}

var blockPod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}

func TestPathsOfADevice(t *testing.T) {
	p, root := newBlockPlugin(t)
	spec := specOf(newBlockVolume("a"))
	mapper, err := p.NewBlockVolumeMapper(spec, blockPod)
	require.NoError(t, err)
	unmapper, err := p.NewBlockVolumeUnmapper("pv", "uid")
	require.NoError(t, err)
	for _, v := range []volume.BlockVolume{mapper, unmapper} {
		path, err := v.GetGlobalMapPath(spec)
		require.NoError(t, err)
		assert.Equal(t, root+"/plugins/volumekit.io/loop-block/volumeDevices/a", path)
		dir, name := v.GetPodDeviceMapPath()
		assert.Equal(t, root+"/pods/uid/volumeDevices/volumekit.io~loop-block/pv", filepath.Join(dir, name))
	}
	_, err = p.NewBlockVolumeUnmapper("pv", "")
	require.NoError(t, err, "for the device itself")
	_, err = p.NewBlockVolumeUnmapper("../pv", "uid")
	require.ErrorIs(t, err, volume.ErrInvalid)
	_, err = p.NewBlockVolumeUnmapper("pv", "../uid")
	require.ErrorIs(t, err, volume.ErrInvalid)
	_, err = p.NewBlockVolumeMapper(spec, &v1.Pod{})
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestTheModeDecidesWhatAVolumeIs(t *testing.T) {
	p, _ := newBlockPlugin(t)
	block, filesystem := specOf(newBlockVolume("a")), specOf(newVolume("a"))
	for spec, staged := range map[*volume.Spec]bool{block: false, filesystem: true} {
		attached, err := p.CanAttach(spec)
		require.NoError(t, err)
		assert.True(t, attached)
		mounted, err := p.CanDeviceMount(spec)
		require.NoError(t, err)
		assert.Equal(t, staged, mounted)
	}
	_, err := p.NewBlockVolumeMapper(filesystem, blockPod)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	_, err = p.NewMounter(block, blockPod)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	n := &node{p}
	_, err = n.GetDeviceMountPath(block)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	err = n.MountDevice(t.Context(), block, "/dev/loop0", p.mounts.stagingPath("a"), volume.DeviceMounterArgs{})
	require.ErrorIs(t, err, volume.ErrUnsupported)
}

func TestADeviceIsReadOnlyForAllOrForNone(t *testing.T) {
	p, _ := newBlockPlugin(t)
	one := specOf(newBlockVolume("a"))
	one.ReadOnly = true
	_, err := p.NewBlockVolumeMapper(one, blockPod)
	require.ErrorIs(t, err, volume.ErrUnsupported, "a bind cannot keep that pod from writing")
	one.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	_, err = p.NewBlockVolumeMapper(one, blockPod)
	require.NoError(t, err)
}

func TestConstructBlockVolumeSpec(t *testing.T) {
	p, root := newBlockPlugin(t)
	path := filepath.Join(root, "link")
	construct := func(target string) (*volume.Spec, error) {
		require.NoError(t, os.Symlink(target, path))
		spec, err := p.ConstructBlockVolumeSpec("uid", "pv", path)
		require.NoError(t, os.Remove(path))
		return spec, err
	}
	maps := root + "/plugins/volumekit.io/loop-block/volumeDevices/"
	spec, err := construct(maps + "handle/uid")
	require.NoError(t, err)
	assert.Equal(t, "pv", spec.Name())
	mode, err := volume.GetVolumeMode(spec)
	require.NoError(t, err)
	assert.Equal(t, v1.PersistentVolumeBlock, mode)
	name, err := p.GetVolumeName(spec)
	require.NoError(t, err)
	assert.Equal(t, "handle", name)
	for _, target := range []string{maps + "handle/other", maps + "uid", "/elsewhere/handle/uid", maps + "a/handle/uid", "uid"} {
		_, err := construct(target)
		require.ErrorIs(t, err, volume.ErrInvalid, target)
	}
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = p.ConstructBlockVolumeSpec("uid", "pv", path)
	require.ErrorIs(t, err, volume.ErrInvalid, "no link")
	_, err = p.ConstructBlockVolumeSpec("uid", "../pv", path)
	require.ErrorIs(t, err, volume.ErrInvalid)
}
