package store_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/releasetest"
	"github.com/volumekit/volumekit/store"
)

// TestWhatReleasesHaveWritten: a store on disk has the objects that each earlier version has written, in its snapshot and its journal.
func TestWhatReleasesHaveWritten(t *testing.T) {
	releasetest.Check(t, func(t *testing.T, dir string) {
		t.Helper()
		s, err := store.OpenDisk(filepath.Join(dir, "store"), store.DiskOptions{CompactBytes: 500})
		require.NoError(t, err)
		for _, name := range []string{"kept-1", "kept-2", "kept-3", "gone"} {
			pv := &v1.PersistentVolume{ObjectMeta: objectMeta("", name, "")}
			pv.Annotations = map[string]string{"example.com/of": name}
			_, err := store.Create(t.Context(), s, pv)
			require.NoError(t, err)
		}
		require.NoError(t, s.Delete(t.Context(), store.Key{Kind: store.PersistentVolumes, Name: "gone"}, store.Preconditions{}))
		claim := &v1.PersistentVolumeClaim{ObjectMeta: objectMeta("default", "claim", "")}
		claim.Finalizers = []string{"example.com/stays"}
		_, err = store.Create(t.Context(), s, claim)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}, func(t *testing.T, dir string) {
		t.Helper()
		s, err := store.OpenDisk(filepath.Join(dir, "store"), store.DiskOptions{})
		require.NoError(t, err)
		defer func() { assert.NoError(t, s.Close()) }()
		volumes, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
		require.NoError(t, err)
		require.Len(t, volumes, 3)
		for i, pv := range volumes {
			assert.Equal(t, []string{"kept-1", "kept-2", "kept-3"}[i], pv.Name)
			assert.Equal(t, pv.Name, pv.Annotations["example.com/of"])
			assert.NotEmpty(t, pv.UID)
		}
		claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "claim")
		require.NoError(t, err)
		assert.Equal(t, []string{"example.com/stays"}, claim.Finalizers)
		_, err = store.Create(t.Context(), s, &v1.PersistentVolume{ObjectMeta: objectMeta("", "new", "")})
		require.NoError(t, err)
	})
}
