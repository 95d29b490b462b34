package dockerserver

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/releasetest"
)

// TestWhatReleasesHaveWritten: a server reads the volumes that servers of earlier versions have created.
func TestWhatReleasesHaveWritten(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "loop-block.volumekit.io", VolumeHandle: "data"}
	source := v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/usr/share"}}
	volumes := []volumeRecord{
		{Step: made, Name: "data", Options: "digest", PV: pv, Created: "2026-11-29T12:00:00Z"},
		{Step: making, Name: "new", Options: "digest"},
		{Step: deleting, Name: "old", Options: "digest", PV: pv, Created: "2026-11-29T12:00:00Z"},
		{Step: made, Name: "share", Volume: &v1.Volume{Name: "share", VolumeSource: source}, Created: "2026-11-29T12:00:00Z"},
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
			require.NoError(t, r.volumes.Put(v.Name, v))
		}
		require.NoError(t, r.close())
	}, func(t *testing.T, dir string) {
		t.Helper()
		r := open(t, dir)
		assert.Equal(t, volumes, r.volumes.All())
		require.NoError(t, r.close())
	})
}
