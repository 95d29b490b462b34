package etcd_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

func TestStore(t *testing.T) {
	c := newCluster(t)
	client := c.clientOf()
	stores := 0
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) store.Store {
			t.Helper()
			stores++
			return c.store(client, fmt.Sprintf("/store-%d", stores))
		},
		Compact: func(t *testing.T, _ store.Store) {
			t.Helper()
			now, err := client.Put(t.Context(), "another-write", "")
			require.NoError(t, err)
			_, err = client.Compact(t.Context(), now.Header.Revision)
			require.NoError(t, err)
		},
	})
	t.Run("LongListsAreReadInPages", func(t *testing.T) { testPages(t, c.store(client, "/pages")) })
	t.Run("AnotherPrefixIsAnotherStore", func(t *testing.T) {
		one, other := c.store(client, "/apart"), c.store(client, "/apart-too")
		_, err := store.Create(t.Context(), one, newVolume("disk"))
		require.NoError(t, err)
		items, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), other, "")
		require.NoError(t, err)
		assert.Empty(t, items)
	})
	t.Run("WhatOthersWroteIsRefused", func(t *testing.T) {
		s := c.store(client, "/foreign")
		_, err := client.Put(t.Context(), "/foreign/PersistentVolume/objects/disk", `{"kind": "PersistentVolume"}`)
		require.NoError(t, err)
		_, err = store.Get[*v1.PersistentVolume](t.Context(), s, "", "disk")
		require.ErrorIs(t, err, store.ErrInvalid)
		_, err = s.List(t.Context(), store.PersistentVolumes, "")
		require.ErrorIs(t, err, store.ErrInvalid)
	})
	t.Run("OtherKindsAreKept", func(t *testing.T) {
		kinds, err := store.NewKindTable(store.Kind{
			GroupVersionKind: v1.SchemeGroupVersion.WithKind("Service"), Object: &v1.Service{}, Namespaced: true,
		})
		require.NoError(t, err)
		s, err := etcd.New(client, etcd.Options{Prefix: "/kinds", Kinds: kinds})
		require.NoError(t, err)
		created, err := store.Create(t.Context(), s, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
		require.NoError(t, err)
		listed, version, err := store.ListOf[*v1.Service](t.Context(), s, "")
		require.NoError(t, err)
		assert.Equal(t, []*v1.Service{created}, listed)
		events, err := s.Watch(t.Context(), created.GroupVersionKind(), "", version)
		require.NoError(t, err)
		require.NoError(t, store.Delete(t.Context(), s, created))
		assert.Equal(t, store.Deleted, (<-events).Type)
	})
	t.Run("TooManyWritesAreInvalid", func(t *testing.T) {
		var tx store.Transaction
		for i := range 200 {
			tx.Writes = append(tx.Writes, store.ToCreate(newVolume(fmt.Sprintf("disk-%d", i))))
		}
		_, err := c.store(client, "/many").Commit(t.Context(), tx)
		require.ErrorIs(t, err, store.ErrInvalid)
	})
	t.Run("Hold", func(t *testing.T) { testHold(t, c.store(client, "/hold")) })
}

func TestOptions(t *testing.T) {
	_, err := etcd.New(nil, etcd.Options{Prefix: "/store"})
	require.ErrorIs(t, err, store.ErrInvalid)
}

func newVolume(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// testPages lists more objects than one request reads.
func testPages(t *testing.T, s *etcd.Store) {
	for i := range 11 {
		var tx store.Transaction
		for j := range 100 {
			tx.Writes = append(tx.Writes, store.ToCreate(newVolume(fmt.Sprintf("disk-%02d%02d", i, j))))
		}
		_, err := s.Commit(t.Context(), tx)
		require.NoError(t, err)
	}
	items, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	require.NoError(t, err)
	require.Len(t, items, 1100)
	for i, pv := range items {
		require.Equal(t, fmt.Sprintf("disk-%04d", i), pv.Name)
	}
}
