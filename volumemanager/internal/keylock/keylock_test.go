package keylock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func TestLocksExcludeOneAnotherByKey(t *testing.T) {
	var all Locks[string]
	inside := make(map[string]int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 100 {
		wg.Go(func() {
			key := []string{"a", "b"}[i%2]
			release, ok := all.Take(nil, key)
			assert.True(t, ok)
			mu.Lock()
			inside[key]++
			assert.Equal(t, 1, inside[key])
			mu.Unlock()
			mu.Lock()
			inside[key]--
			mu.Unlock()
			release()
		})
	}
	wg.Wait()
	assert.Empty(t, all.keys, "a key needs no memory while its lock is free")
}

func TestAWaitForALockCanBeGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Locks[string]
		release, _ := all.Take(nil, "a")
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan bool)
		go func() {
			_, ok := all.Take(ctx.Done(), "a")
			gaveUp <- !ok
		}()
		synctest.Wait()
		_, ok := all.Take(ctx.Done(), "b")
		assert.True(t, ok, "another key is free")
		cancel()
		assert.True(t, <-gaveUp)
		release()
		_, ok = all.Take(nil, "a")
		assert.True(t, ok)
	})
}
