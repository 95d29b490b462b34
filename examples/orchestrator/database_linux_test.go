package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

// A method that came with the store in memory would write past the file.
func TestEveryWriteOfTheDatabaseIsInItsFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "objects")
	first, err := openDatabase(t.Context(), name)
	require.NoError(t, err)
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v-1"}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c-1"}}
	require.NoError(t, writeTogether(t, first, volume, claim))
	first.close()

	second, err := openDatabase(t.Context(), name)
	require.NoError(t, err)
	defer second.close()
	for _, key := range []store.Key{
		{Kind: store.PersistentVolumes, Name: "v-1"},
		{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: "c-1"},
	} {
		_, err := second.Get(t.Context(), key)
		require.NoError(t, err)
	}
}

// writeTogether writes objects as the controllers do: at once where a store can.
func writeTogether(t *testing.T, s store.Store, objects ...store.Object) error {
	t.Helper()
	if together, ok := s.(store.Transactor); ok {
		var writes []store.Write
		for _, obj := range objects {
			writes = append(writes, store.ToCreate(obj))
		}
		_, err := together.Commit(t.Context(), store.Transaction{Writes: writes})
		return err
	}
	for _, obj := range objects {
		if _, err := s.Create(t.Context(), obj); err != nil {
			return err
		}
	}
	return nil
}
