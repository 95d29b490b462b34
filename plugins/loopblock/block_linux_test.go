package loopblock_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func blockClaim(name string) volume.VolumeOptions {
	options, mode := claimOf(name), v1.PersistentVolumeBlock
	options.PVC.Spec.VolumeMode = &mode
	return options
}

func TestABlockVolumeIsProvisionedWithoutAFilesystem(t *testing.T) {
	n := newNode(t)
	spec, err := n.tryProvision(t.Context(), blockClaim("pv"))
	require.NoError(t, err)
	mode, err := volume.GetVolumeMode(spec)
	require.NoError(t, err)
	assert.Equal(t, v1.PersistentVolumeBlock, mode)
	assert.Empty(t, spec.PersistentVolume.Spec.CSI.FSType)
	content, err := os.ReadFile(n.image("pv"))
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 32<<20), content)

	writeToDevice(t, n.attach(spec), "of a pod")
	again, err := n.tryProvision(t.Context(), blockClaim("pv"))
	require.NoError(t, err)
	assert.Equal(t, spec.PersistentVolume, again.PersistentVolume)
	file, err := os.Open(n.image("pv"))
	require.NoError(t, err)
	defer file.Close()
	content = make([]byte, 8)
	_, err = file.Read(content)
	require.NoError(t, err)
	assert.Equal(t, "of a pod", string(content))
	require.NoError(t, n.tryDetach(t.Context(), spec))
	require.NoError(t, n.tryDelete(spec))
	assert.Empty(t, n.names())
}

// writeToDevice writes to a device and to the file behind it. Without the sync the file has the content with the last close,
// which may be another process's: one that opens all loop devices just then.
func writeToDevice(t *testing.T, path, content string) {
	t.Helper()
	device, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer device.Close()
	_, err = device.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, device.Sync())
}

func TestADeviceWithoutAWriterIsReadOnly(t *testing.T) {
	n := newNode(t)
	spec, err := n.tryProvision(t.Context(), blockClaim("pv"))
	require.NoError(t, err)
	spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	err = os.WriteFile(n.attach(spec), []byte("of a pod"), 0)
	require.ErrorIs(t, err, os.ErrPermission, "when it is opened, or with the write: kernels differ")
}
