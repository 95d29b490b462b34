package store_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// services is a kind that stores do not keep unless they are told to.
var services = store.Kind{GroupVersionKind: v1.SchemeGroupVersion.WithKind("Service"), Object: &v1.Service{}, Namespaced: true}

func withServices(t *testing.T) *store.KindTable {
	t.Helper()
	kinds, err := store.NewKindTable(services)
	require.NoError(t, err)
	return kinds
}

func newService(name string) *v1.Service {
	return &v1.Service{ObjectMeta: objectMeta("default", name, "")}
}

func TestStoresKeepTheKindsOfTheirTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	kinds := withServices(t)
	memory := store.NewMemory(store.MemoryOptions{Kinds: kinds})
	for name, s := range map[string]store.Store{
		"memory": memory,
		"disk":   openDisk(t, path, store.DiskOptions{Kinds: kinds}),
		"faulty": storetest.NewFaulty(memory, storetest.Faults{}),
	} {
		t.Run(name, func(t *testing.T) {
			created, err := store.Create(t.Context(), s, newService("web-"+name))
			require.NoError(t, err)
			assert.Equal(t, services.GroupVersionKind, created.GroupVersionKind())
			found, err := store.Get[*v1.Service](t.Context(), s, "default", created.Name)
			require.NoError(t, err)
			found.Spec.ClusterIP = "None"
			updated, err := store.Update(t.Context(), s, found)
			require.NoError(t, err)
			listed, version, err := store.ListOf[*v1.Service](t.Context(), s, "default")
			require.NoError(t, err)
			assert.Contains(t, listed, updated)

			events, err := s.Watch(t.Context(), services.GroupVersionKind, "", version)
			require.NoError(t, err)
			require.NoError(t, store.Delete(t.Context(), s, updated))
			assert.Equal(t, store.Deleted, (<-events).Type)
			require.NoError(t, store.WaitForNone(t.Context(), s, func(s *v1.Service) bool { return s.Name == created.Name }))

			loaded, err := store.Load(t.Context(), s, []runtime.Object{newService("loaded-" + name)})
			require.NoError(t, err)
			require.Len(t, loaded, 1)
			applied, err := store.Apply(t.Context(), s, []runtime.Object{newService("applied-" + name)})
			require.NoError(t, err)
			require.Len(t, applied, 1)
		})
	}
	_, err := store.Create(t.Context(), store.NewMemory(store.MemoryOptions{}), newService("web"))
	require.ErrorIs(t, err, store.ErrInvalid, "another store does not know the kind")
}

// A directory with objects of a kind that the store is not told of is refused: without them it would look as if they were gone.
func TestADirectoryWithUnknownKindsIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	disk := openDisk(t, path, store.DiskOptions{Kinds: withServices(t)})
	created, err := store.Create(t.Context(), disk, newService("web"))
	require.NoError(t, err)
	require.NoError(t, disk.Close())
	for _, salvage := range []bool{false, true} {
		_, err = store.OpenDisk(path, store.DiskOptions{Salvage: salvage})
		require.ErrorIs(t, err, store.ErrNewer)
	}
	found, err := store.Get[*v1.Service](t.Context(), openDisk(t, path, store.DiskOptions{Kinds: withServices(t)}), "default", "web")
	require.NoError(t, err)
	assert.Equal(t, created, found)
}

func TestATableReadsManifestsOfItsKinds(t *testing.T) {
	text := "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	decoded, err := withServices(t).Decode(strings.NewReader(text))
	require.NoError(t, err)
	require.IsType(t, &v1.Service{}, decoded[0])
	_, err = store.Decode(strings.NewReader(text))
	require.ErrorIs(t, err, store.ErrInvalid)
}

func TestAKindIsInATableOnce(t *testing.T) {
	pods := services
	pods.Object = &v1.Pod{}
	for name, row := range map[string][]store.Kind{
		"the same twice":          {services, services},
		"a Go type that is there": {pods},
		"a name that is there": {{
			GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Pod"}, Object: &v1.Service{},
		}},
		"no version": {{GroupVersionKind: schema.GroupVersionKind{Kind: "Service"}, Object: &v1.Service{}}},
		"no object":  {{GroupVersionKind: services.GroupVersionKind}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := store.NewKindTable(row...)
			require.ErrorIs(t, err, store.ErrInvalid)
		})
	}
}
