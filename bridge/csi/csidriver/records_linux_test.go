package csidriver

import (
	"errors"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// writeRecord writes a record in a boot.
func (n *node) writeRecord(boot string, rec record) {
	n.t.Helper()
	records := n.plugin.node.mountPoints.records
	records.boot = boot
	_, err := records.write(rec)
	require.NoError(n.t, err)
}

func (n *node) tryDelete(spec *volume.Spec) error {
	n.t.Helper()
	deleter, err := n.plugin.NewDeleter(spec)
	require.NoError(n.t, err)
	return deleter.Delete(n.t.Context())
}

// A power cut takes the content of records that were written shortly before. Such a record stops nothing, and a mount at its path is
// foreign, as one without a record.
func TestARecordWithoutContentIsNoRecord(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "zeros": string(make([]byte, 300))} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, fakedriver.Options{}, nil)
			records := n.plugin.node.mountPoints.records
			require.NoError(t, os.MkdirAll(records.dir, 0o700))
			for _, path := range []string{n.path(), n.plugin.node.stagingPath(source{csi: n.spec.PersistentVolume.Spec.CSI}), "/elsewhere"} {
				require.NoError(t, os.WriteFile(records.file(path), []byte(content), 0o600))
			}
			n.delete(n.provision("pv-2", nil))
			require.NoError(t, n.stage())
			require.NoError(t, n.setUp(t.Context()))
			n.expectGone()

			require.NoError(t, os.WriteFile(records.file(n.path()), []byte(content), 0o600))
			require.NoError(t, mount.MountMemory(t.Context(), n.plugin.options.Mounter, n.path()))
			require.ErrorIs(t, n.tearDown(), mount.ErrForeign)
			assert.True(t, n.isMounted())
			require.NoError(t, mount.UnmountPath(t.Context(), n.plugin.options.Mounter, n.path(), mount.UnmountOptions{}))
			require.NoError(t, n.tearDown())
			assert.NoFileExists(t, records.file(n.path()))
		})
	}
}

// After a power cut there may be a record that was removed before. It is of an earlier boot: if nothing is mounted at its path, the volume
// is not in use, and it is neither staged nor published.
func TestARecordOfAnEarlierBootIsOfNoMount(t *testing.T) {
	t.Run("a volume is deleted", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		id := n.spec.PersistentVolume.Spec.CSI.VolumeHandle
		n.writeRecord("earlier", record{Path: n.path(), VolumeID: id, Kind: published})
		require.NoError(t, mount.MountMemory(t.Context(), n.plugin.options.Mounter, n.path()))
		require.ErrorIs(t, n.tryDelete(n.spec), volume.ErrInUse, "something is mounted at the path")
		require.NoError(t, mount.UnmountPath(t.Context(), n.plugin.options.Mounter, n.path(), mount.UnmountOptions{}))
		for _, boot := range []string{"", n.plugin.node.mountPoints.records.boot} { // Earlier versions do not record the boot.
			n.writeRecord(boot, record{Path: n.path(), VolumeID: id, Kind: published})
			require.ErrorIs(t, n.tryDelete(n.spec), volume.ErrInUse)
		}
		assert.Zero(t, n.Count("DeleteVolume"))
		n.writeRecord("earlier", record{Path: n.path(), VolumeID: id, Kind: published})
		n.writeRecord("earlier", record{Path: "/other", VolumeID: "vol-other", Kind: published})
		require.NoError(t, n.tryDelete(n.spec))
		assert.Equal(t, 1, n.Count("DeleteVolume"))
		left, err := n.plugin.node.mountPoints.records.all(func(record) bool { return true })
		require.NoError(t, err)
		require.Len(t, left, 1)
		assert.Equal(t, "/other", left[0].Path)
	})
	t.Run("another volume gets the path", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		n.writeRecord(n.plugin.node.mountPoints.records.boot, record{Path: n.path(), VolumeID: "vol-other", Kind: published})
		require.NoError(t, n.stage())
		require.ErrorContains(t, n.setUp(t.Context()), "vol-other")
		n.writeRecord("earlier", record{Path: "/x", VolumeID: "vol-other", Kind: published})
		records := n.plugin.node.mountPoints.records
		require.NoError(t, errors.Join(records.remove(n.path()), records.remove("/x")))
		n.writeRecord("earlier", record{Path: n.path(), VolumeID: "vol-other", Kind: published})
		require.NoError(t, n.setUp(t.Context()))
		n.expectGone()
	})
	t.Run("a volume is not staged", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		staging := n.plugin.node.stagingPath(source{csi: n.spec.PersistentVolume.Spec.CSI})
		n.writeRecord("earlier", record{Path: staging, VolumeID: n.spec.PersistentVolume.Spec.CSI.VolumeHandle, Kind: staged})
		require.ErrorIs(t, n.setUp(t.Context()), ErrNotStaged)
		require.NoError(t, n.stage())
		require.NoError(t, n.setUp(t.Context()))
		n.expectGone()
	})
	t.Run("its publish context is not used", func(t *testing.T) {
		n := newNode(t, withoutStaging(), nil)
		n.writeRecord("earlier", record{Path: n.path(), VolumeID: n.spec.PersistentVolume.Spec.CSI.VolumeHandle, Kind: published})
		require.ErrorIs(t, n.setUp(t.Context()), ErrNotAttached)
		assert.Zero(t, n.Count("NodePublishVolume"))
	})
	t.Run("it is torn down", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		n.writeRecord("earlier", record{Path: n.path(), VolumeID: n.spec.PersistentVolume.Spec.CSI.VolumeHandle, Kind: published})
		require.NoError(t, n.tearDown())
		assert.Equal(t, 1, n.Count("NodeUnpublishVolume"), "the driver may have stored something for the volume")
	})
}

// withoutStaging are the options of a driver that attaches volumes and does not stage them.
func withoutStaging() fakedriver.Options {
	return fakedriver.Options{Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}}
}
