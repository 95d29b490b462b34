package csiserver

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/releasetest"
	"github.com/volumekit/volumekit/volume"
)

// TestWhatReleasesHaveWritten: a server reads the records of each earlier version that outlive a boot.
func TestWhatReleasesHaveWritten(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "loop-block.volumekit.io", VolumeHandle: "id-1"}
	group := int64(2000)
	volumes := []volumeRecord{
		{Step: made, Name: "pvc-1", ID: "id-1", PV: pv, Parameters: "digest", Mutable: "another"},
		{Step: making, Name: "pvc-2", Parameters: "digest", Origin: "id-1"},
		{Step: deleting, Name: "pvc-3", ID: "id-3", PV: pv, Parameters: "digest", OriginSnapshot: "snapshot-id"},
	}
	attached := attachment{
		ID: "id-1", Node: "node-1", Origin: originOf(pv), Done: true, Device: "/dev/loop1", ReadOnly: true,
		Capability: capability{FSType: "ext4", Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, Group: &group},
	}
	snapshot := snapshotRecord{Step: made, Name: "snapshot-1", Source: "id-1", PV: pv, Snapshot: volume.Snapshot{Handle: "snapshot-id", ReadyToUse: true}}
	saved := groupRecord{
		Step: made, Name: "group-1", Sources: map[string]*v1.PersistentVolume{"id-1": pv}, Parameters: "digest",
		Group: volume.GroupSnapshot{Handle: "group-id"}, Origins: map[string]string{"snapshot-id": "id-1"},
	}
	open := func(t *testing.T, dir string) *records {
		t.Helper()
		r, err := openRecords(Options{StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return r
	}
	releasetest.Check(t, func(t *testing.T, dir string) {
		t.Helper()
		r := open(t, dir)
		for _, v := range volumes {
			require.NoError(t, r.state.volumes.Put(v.Name, v))
		}
		require.NoError(t, r.state.attachments.Put("id-1/node-1", attached))
		require.NoError(t, r.state.snapshots.Put("snapshot-1", snapshot))
		require.NoError(t, r.state.groups.Put("group-1", saved))
		require.NoError(t, r.close())
	}, func(t *testing.T, dir string) {
		t.Helper()
		r := open(t, dir)
		assert.Equal(t, volumes, r.state.volumes.All())
		assert.Equal(t, []attachment{attached}, r.state.attachments.All())
		assert.Equal(t, []snapshotRecord{snapshot}, r.state.snapshots.All())
		assert.Equal(t, []groupRecord{saved}, r.state.groups.All())
		require.NoError(t, r.close())
	})
}
