package store_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
)

func TestWaitForNoneReturnsWithTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		_, err := apply(t, s, applyClaim, applyPod)
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			ended <- store.WaitForNone(t.Context(), s, func(c *v1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
		}()
		synctest.Wait()
		assert.Empty(t, ended, "a claim is left")

		claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
		require.NoError(t, err)
		claim.Labels = map[string]string{"other": "change"}
		claim, err = store.Update(t.Context(), s, claim)
		require.NoError(t, err)
		synctest.Wait()
		assert.Empty(t, ended, "it is unwanted all the same")

		claim.Spec.VolumeName = "disk-1"
		_, err = store.Update(t.Context(), s, claim)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, <-ended)
	})
}

func TestWaitForNoneNamesWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		_, err := apply(t, s, applyPod)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = store.WaitForNone(ctx, s, func(*v1.Pod) bool { return true })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `Pod "default/web"`)
	})
}
