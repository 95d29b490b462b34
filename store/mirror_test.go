package store_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// breaker is a store whose lists fail and whose watches end when they are told to.
type breaker struct {
	store.Store
	mu    sync.Mutex
	fails int // lists that are still to fail
	cut   context.CancelFunc
}

func (b *breaker) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails > 0 {
		b.fails--
		return store.List{}, errors.New("no list today")
	}
	return b.Store.List(ctx, kind, namespace)
}

func (b *breaker) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, b.cut = context.WithCancel(ctx)
	return b.Store.Watch(ctx, kind, namespace, version)
}

// mirrored is a mirror that is followed, and what it told.
type mirrored struct {
	*store.Mirror[*v1.PersistentVolume]
	byClass *store.Index[*v1.PersistentVolume, string]
	store   *breaker
	mu      sync.Mutex
	told    []string
}

func mirror(t *testing.T, fails int) *mirrored {
	t.Helper()
	b := &breaker{Store: store.NewMemory(store.MemoryOptions{History: 10}), fails: fails}
	m := &mirrored{Mirror: store.NewMirror[*v1.PersistentVolume](b, store.MirrorOptions{}), store: b}
	m.byClass = store.NewIndex(m.Mirror, func(pv *v1.PersistentVolume) []string { return []string{pv.Spec.StorageClassName} })
	go m.Follow(t.Context(), func(pv *v1.PersistentVolume) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.told = append(m.told, pv.Name)
	})
	return m
}

// tells returns what was told since it was last asked.
func (m *mirrored) tells() []string {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	told := m.told
	m.told = nil
	return told
}

func (m *mirrored) ofClass(class string) []string {
	names := []string{}
	for _, pv := range m.byClass.Get(class) {
		names = append(names, pv.Name)
	}
	slices.Sort(names)
	return names
}

func setClass(t *testing.T, s store.Store, name, class string) *v1.PersistentVolume {
	t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), s, "", name)
	require.NoError(t, err)
	pv.Spec.StorageClassName = class
	pv, err = store.Update(t.Context(), s, pv)
	require.NoError(t, err)
	return pv
}

func TestMirrorFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mirror(t, 0)
		assert.True(t, m.WaitSynced(t.Context()), "an empty list is one, too")
		createVolume(t, m.store, "a")
		createVolume(t, m.store, "b")
		assert.Equal(t, []string{"a", "b"}, m.tells())
		assert.Equal(t, []string{"a", "b"}, m.ofClass(""))
		fast := setClass(t, m.store, "a", "fast")
		assert.Equal(t, []string{"a"}, m.tells())
		assert.Equal(t, []string{"a"}, m.ofClass("fast"))
		assert.Equal(t, []string{"b"}, m.ofClass(""))
		require.NoError(t, store.Delete(t.Context(), m.store, fast))
		assert.Equal(t, []string{"a"}, m.tells(), "one that is gone is told as well")
		_, there := m.Get(types.NamespacedName{Name: "a"})
		assert.False(t, there)
		assert.Empty(t, m.ofClass("fast"))
		assert.Len(t, m.All(), 1)
	})
}

func TestMirrorListsAgainWhenItsWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mirror(t, 0)
		gone := createVolume(t, m.store, "gone")
		createVolume(t, m.store, "old")
		setClass(t, m.store, "old", "slow")
		m.tells()
		m.store.cut()
		synctest.Wait()
		require.NoError(t, store.Delete(t.Context(), m.store, gone))
		createVolume(t, m.store, "new")
		for range 30 { // More than the store remembers.
			setClass(t, m.store, "old", "")
			setClass(t, m.store, "old", "fast")
		}
		time.Sleep(time.Minute)
		told := m.tells()
		for _, name := range []string{"gone", "old", "new"} {
			assert.Contains(t, told, name)
		}
		assert.Equal(t, []string{"old"}, m.ofClass("fast"))
		assert.Equal(t, []string{"new"}, m.ofClass(""))
		assert.Empty(t, m.ofClass("slow"), "an index is no older than its mirror")
	})
}

func TestMirrorIsSyncedAfterTheFirstListThatWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := mirror(t, 3)
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		assert.False(t, m.WaitSynced(short))
		assert.True(t, m.WaitSynced(t.Context()))
		assert.Greater(t, time.Since(began), time.Second, "it waits longer after each failure")
	})
}

func TestMirrorKnowsWhatItsOwnerHasWritten(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	old := createVolume(t, s, "disk")
	m := store.NewMirror[*v1.PersistentVolume](s, store.MirrorOptions{})
	byClass := store.NewIndex(m, func(pv *v1.PersistentVolume) []string { return []string{pv.Spec.StorageClassName} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Follow(ctx, func(*v1.PersistentVolume) {})
	}()
	require.True(t, m.WaitSynced(t.Context()))
	cancel()
	<-done // No event arrives from now on.
	written := setClass(t, s, "disk", "fast")
	m.Put(written)
	assert.Equal(t, []*v1.PersistentVolume{written}, byClass.Get("fast"))
	m.Put(old)
	got, _ := m.Get(types.NamespacedName{Name: "disk"})
	assert.Same(t, written, got, "what is older than the mirror changes nothing")
}
