package simulation_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/internal/simulation"
)

// threeTakeTurns lets three goroutines take three turns each, and returns what they wrote and how long that took.
func threeTakeTurns(t *testing.T, seed uint64) (text string, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		turns, began := simulation.NewScheduler(rand.New(rand.NewPCG(seed, 0)), &simulation.Trace{}), time.Now()
		var written strings.Builder // No lock: one writes at a time.
		for _, letter := range []string{"a", "b", "c"} {
			go func() {
				for i := range 3 {
					turns.Take(letter)
					fmt.Fprint(&written, letter, i, " ")
				}
			}()
		}
		turns.Sleep(0)
		text, took = written.String(), time.Since(began)
	})
	return text, took
}

func TestTurnsAreTakenInTheOrderOfTheSeed(t *testing.T) {
	orders := map[string]bool{}
	for seed := range uint64(20) {
		once, took := threeTakeTurns(t, seed)
		again, _ := threeTakeTurns(t, seed)
		assert.Equal(t, once, again, "seed %d", seed)
		assert.Len(t, strings.Fields(once), 9)
		assert.Equal(t, 9*time.Nanosecond, took, "a nanosecond a turn")
		orders[once] = true
	}
	assert.Greater(t, len(orders), 10)
}

func TestTimePassesWhileNoGoroutineWaitsForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trace := &simulation.Trace{Keep: true}
		turns, done := simulation.NewScheduler(rand.New(rand.NewPCG(0, 0)), trace), make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Hour)
			turns.Take("after an hour")
			time.Sleep(time.Hour)
			turns.Take("after two")
		}()
		turns.Sleep(90 * time.Minute)
		assert.Equal(t, []string{"after an hour"}, trace.Lines())
		turns.Await(done)
		assert.Equal(t, []string{"after an hour", "after two"}, trace.Lines())
	})
}

func TestWhoseContextEndsNeedsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trace := &simulation.Trace{Keep: true}
		turns := simulation.NewScheduler(rand.New(rand.NewPCG(0, 0)), trace)
		ctx, cancel := context.WithCancel(t.Context())
		took := make(chan bool, 2)
		go func() { took <- turns.TakeUnless(ctx, "ended") }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		assert.False(t, <-took)
		go func() { took <- turns.TakeUnless(t.Context(), "goes on") }()
		turns.Sleep(0)
		assert.True(t, <-took)
		assert.Equal(t, []string{"goes on"}, trace.Lines())
	})
}
