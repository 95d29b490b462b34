package files

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// outOfReach is a store that cannot be read.
type outOfReach struct{ store.Store }

func (outOfReach) Get(context.Context, store.Key) (runtime.Object, error) {
	return nil, errors.New("no answer")
}

// A volume has what the store holds. An optional object that the store does not have gives no files; one that could not be read
// fails the set-up.
func TestFilesOfObjectsInAStore(t *testing.T) {
	objects := store.NewMemory(store.MemoryOptions{})
	_, err := store.Create(t.Context(), objects, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"text": "of the store"},
	})
	require.NoError(t, err)
	optional := true
	missing := &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "missing"}, Optional: &optional}
	spec := projected(
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}},
		v1.VolumeProjection{Secret: missing},
	)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "42"}}
	setUp := func(from store.Store) (map[string]string, error) {
		world := fake.NewMounter(fake.MounterOptions{})
		host, err := volume.NewHost(volume.HostOptions{RootDir: "/root", NodeName: "node"})
		require.NoError(t, err)
		getter := store.Getter{Store: from}
		plugin := NewProjected(Getters{ConfigMaps: getter, Secrets: getter}, Options{Mounter: world, Directories: world})
		require.NoError(t, plugin.Init(t.Context(), host))
		mounter, err := plugin.NewMounter(spec, pod)
		require.NoError(t, err)
		if err := mounter.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
			return nil, err
		}
		text, err := world.ReadFile(mounter.GetPath() + "/text")
		require.NoError(t, err)
		return map[string]string{"text": string(text)}, nil
	}

	got, err := setUp(objects)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"text": "of the store"}, got)

	_, err = setUp(outOfReach{objects})
	require.ErrorContains(t, err, "no answer")

	missing.Optional = nil
	_, err = setUp(objects)
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorIs(t, err, volume.ErrNotFound)
}
