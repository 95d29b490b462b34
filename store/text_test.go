package store_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// TestTextThatIsNoUTF8IsRefused: JSON would make another string of it over a restart. Bytes stay bytes.
func TestTextThatIsNoUTF8IsRefused(t *testing.T) {
	const secret = "hunter2\xff"
	path := filepath.Join(t.TempDir(), "store")
	s := openDisk(t, path, store.DiskOptions{})
	pod := &v1.Pod{ObjectMeta: objectMeta("default", "pod", "")}
	pod.Spec.Containers = []v1.Container{{}, {Args: []string{"fine", secret}}}
	volume := &v1.PersistentVolume{ObjectMeta: objectMeta("", "disk", "")}
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{VolumeAttributes: map[string]string{strings.Repeat("\xff", 100): ""}}
	for _, test := range []struct {
		object runtime.Object
		says   string
	}{
		{pod, "Spec, Containers, element 1, Args, element 1, text"},
		{volume, "VolumeAttributes, key \"\\xff"},
		{&v1.Secret{ObjectMeta: objectMeta("default", "secret", ""), StringData: map[string]string{"a": secret}}, `StringData, key "a", text`},
	} {
		_, err := s.Create(t.Context(), test.object)
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, test.says)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.Less(t, len(err.Error()), 600)
	}
	bytes, err := store.Create(t.Context(), s, &v1.Secret{ObjectMeta: objectMeta("default", "bytes", ""), Data: map[string][]byte{"a": []byte(secret)}})
	require.NoError(t, err)
	bytes.Labels = map[string]string{"a": secret}
	_, err = store.Update(t.Context(), s, bytes)
	require.ErrorIs(t, err, store.ErrInvalid)
	require.NoError(t, s.Close())
	found, err := store.Get[*v1.Secret](t.Context(), openDisk(t, path, store.DiskOptions{}), "default", "bytes")
	require.NoError(t, err)
	assert.Equal(t, secret, string(found.Data["a"]))
}
