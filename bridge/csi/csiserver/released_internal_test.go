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
	volumes := map[string]volumeRecord{
		"pvc-1": {Step: made, Name: "pvc-1", ID: "id-1", PV: pv, Parameters: "digest", Mutable: "another"},
		"pvc-2": {Step: making, Name: "pvc-2", Parameters: "digest", Origin: "id-1"},
		"pvc-3": {Step: deleting, Name: "pvc-3", ID: "id-3", PV: pv, Parameters: "digest", OriginSnapshot: "snapshot-id"},
	}
	attached := attachment{
		ID: "id-1", Node: "node-1", Origin: originOf(pv), Done: true, Device: "/dev/loop1", ReadOnly: true,
		Capability: capability{FSType: "ext4", Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, Group: &group},
	}
	snapshot := snapshotRecord{Step: made, Name: "snapshot-1", Source: "id-1", PV: pv, Told: volume.Snapshot{Handle: "snapshot-id", ReadyToUse: true}}
	saved := groupRecord{
		Step: made, Name: "group-1", Sources: map[string]*v1.PersistentVolume{"id-1": pv}, Parameters: "digest",
		Told: volume.GroupSnapshot{Handle: "group-id"}, Origins: map[string]string{"snapshot-id": "id-1"},
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
		for name, row := range volumes {
			require.NoError(t, r.state.volumes.put(name, row))
		}
		require.NoError(t, r.state.attachments.put("id-1/node-1", attached))
		require.NoError(t, r.state.snapshots.put("snapshot-1", snapshot))
		require.NoError(t, r.state.groups.put("group-1", saved))
		require.NoError(t, r.close())
	}, func(t *testing.T, dir string) {
		t.Helper()
		r := open(t, dir)
		assert.Equal(t, volumes, r.state.volumes.rows)
		assert.Equal(t, map[string]attachment{"id-1/node-1": attached}, r.state.attachments.rows)
		assert.Equal(t, map[string]snapshotRecord{"snapshot-1": snapshot}, r.state.snapshots.rows)
		assert.Equal(t, map[string]groupRecord{"group-1": saved}, r.state.groups.rows)
		require.NoError(t, r.close())
	})
}
