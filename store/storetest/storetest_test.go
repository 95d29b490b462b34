package storetest_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/leak"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(leak.Run(m)) }

// TestFaultyStore: a reader that does what readers are to do ends with what there is, and writers know what to read again.
func TestFaultyStore(t *testing.T) {
	memory := store.NewMemory(store.MemoryOptions{})
	f := storetest.NewFaulty(memory, storetest.Faults{Seed: 1, Conflict: 0.2, Refuse: 0.1, LoseAnswer: 0.2, CutWatch: 0.1, Duplicate: 0.2})
	made, lost, refused := 0, 0, 0
	for range 200 {
		obj, err := f.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{GenerateName: "x", Name: "disk"}})
		there, readErr := memory.Get(t.Context(), store.Key{Kind: store.PersistentVolumes, Name: "disk"})
		switch {
		case err == nil:
			made++
			require.Equal(t, obj, there)
		case readErr == nil:
			lost++
			require.ErrorIs(t, err, storetest.ErrInjected)
		default:
			refused++
			require.ErrorIs(t, err, storetest.ErrInjected)
			continue
		}
		require.NoError(t, store.Delete(t.Context(), memory, there.(*v1.PersistentVolume)))
	}
	assert.Positive(t, made)
	assert.Positive(t, lost)
	assert.Positive(t, refused)
	f.Mend()
	_, err := f.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}})
	require.NoError(t, err)
}

// TestMirrorOfAFaultyStore has a mirror follow through cuts, duplicates and failures.
func TestMirrorOfAFaultyStore(t *testing.T) {
	memory := store.NewMemory(store.MemoryOptions{})
	f := storetest.NewFaulty(memory, storetest.Faults{Seed: 2, Refuse: 0.1, CutWatch: 0.2, Duplicate: 0.3})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := store.NewMirror[*v1.PersistentVolume](f, store.MirrorOptions{InitialBackoff: 1, MaxBackoff: 1})
	last := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Follow(ctx, func(pv *v1.PersistentVolume) {
			if pv.Name == "last" {
				select {
				case last <- struct{}{}:
				default:
				}
			}
		})
	}()
	for i := range 50 {
		pv, err := store.Create(ctx, memory, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}})
		require.NoError(t, err)
		if i < 49 {
			require.NoError(t, store.Delete(ctx, memory, pv))
		}
	}
	_, err := store.Create(ctx, memory, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "last"}})
	require.NoError(t, err)
	<-last
	assert.Len(t, m.All(), 2)
	cancel()
	<-done
}
