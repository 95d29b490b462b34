package loopblock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/releasetest"
	"github.com/volumekit/volumekit/mount/image"
)

// TestWhatReleasesHaveWritten: the plugin reads the records of snapshots and the attributes that each earlier version has written.
func TestWhatReleasesHaveWritten(t *testing.T) {
	created := time.Date(2026, time.November, 29, 12, 0, 0, 5, time.UTC)
	snapshots := []snapshotRecord{
		{Version: 1, Name: "one", ID: "a1b2", Created: created, Members: []snapshotMember{{Source: "pvc-1", Size: 1 << 30, FSType: "ext4"}}},
		{
			Version: 1, Name: "group", ID: "c3d4", Group: true, Created: created,
			Members: []snapshotMember{{Source: "pvc-1", Size: 1 << 30, FSType: "xfs"}, {Source: "pvc-2", Size: 1 << 20, FSType: noFilesystem}},
		},
	}
	tuned := attributes{ParameterDirectIO: "true", ParameterReadAhead: "1Mi"}
	releasetest.Check(t, func(t *testing.T, path string) {
		t.Helper()
		dir, err := image.OpenDir(path)
		require.NoError(t, err)
		defer dir.Close()
		for _, s := range snapshots {
			file, err := dir.Begin(s.Name + lockSuffix)
			require.NoError(t, err)
			require.NoError(t, s.write(dir, file))
			require.NoError(t, dir.Publish(s.Name+lockSuffix, s.Name+recordSuffix))
			require.NoError(t, file.Close())
		}
		require.NoError(t, images{dir: path}.setAttributes("pvc-1", tuned))
	}, func(t *testing.T, path string) {
		t.Helper()
		dir, err := image.OpenDir(path)
		require.NoError(t, err)
		defer dir.Close()
		for _, s := range snapshots {
			found, err := readRecord(dir, s.Name)
			require.NoError(t, err)
			assert.Equal(t, s, found)
		}
		found, err := images{dir: path}.attributes(t.Context(), "pvc-1")
		require.NoError(t, err)
		assert.Equal(t, tuned, found)
	})
}
