package volumemanager

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/volume"
)

func TestTurnsExcludeOneAnotherByKey(t *testing.T) {
	var all turns[string]
	inside := make(map[string]int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 100 {
		wg.Go(func() {
			key := []string{"a", "b"}[i%2]
			release, ok := all.take(nil, key)
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
	assert.Empty(t, all.keys, "a key costs nothing while nobody works on it")
}

func TestWaitForATurnCanBeGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var all turns[string]
		release, _ := all.take(nil, "a")
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan bool)
		go func() {
			_, ok := all.take(ctx.Done(), "a")
			gaveUp <- !ok
		}()
		synctest.Wait()
		_, ok := all.take(ctx.Done(), "b")
		assert.True(t, ok, "another key is free")
		cancel()
		assert.True(t, <-gaveUp)
		release()
		_, ok = all.take(nil, "a")
		assert.True(t, ok)
	})
}

func TestBroadcastWakesThoseWhoWaitForThePodAndThoseWhoWaitForAny(t *testing.T) {
	var b broadcast
	b.notify("a")
	one, cancelOne := b.subscribe("a")
	two, cancelTwo := b.subscribe("a")
	other, cancelOther := b.subscribe("b")
	every, cancelEvery := b.subscribe(anyPod)
	b.notify("a")
	b.notify("a")
	for _, c := range []<-chan struct{}{one, two, every} {
		<-c
		assert.Empty(t, c, "several changes are one token")
	}
	assert.Empty(t, other)
	for _, cancel := range []func(){cancelOne, cancelTwo, cancelOther, cancelEvery} {
		cancel()
	}
	assert.Empty(t, b.waiting)
	b.notify(volume.UniquePodName("a"))
	require.Empty(t, one)
}
