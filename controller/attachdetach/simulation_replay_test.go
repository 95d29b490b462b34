package attachdetach_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireSameTrace compares all that happened in two simulations, byte for byte.
func requireSameTrace(t *testing.T, once, again *cluster, format string, args ...any) {
	t.Helper()
	want, got := once.steps.Lines(), again.steps.Lines()
	require.NotEmpty(t, want)
	if slices.Equal(want, got) {
		return
	}
	i := 0
	for i < min(len(want), len(got)) && want[i] == got[i] {
		i++
	}
	for _, line := range want[max(0, i-20):i] {
		t.Log(line)
	}
	lineAt := func(lines []string) string { return append(slices.Clip(lines), "the end")[i] }
	require.Equal(t, lineAt(want), lineAt(got), "line %d: %s", i, fmt.Sprintf(format, args...))
}

// besideOthers runs f on so many processors, beside goroutines that disturb the order of all others.
func besideOthers(processors int, f func()) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
	var over atomic.Bool
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for !over.Load() {
				runtime.Gosched()
			}
		})
	}
	defer others.Wait()
	defer over.Store(true)
	f()
}

// A seed stands for one run, whatever the machine does beside it.
func TestTheSameSeedGivesTheSameTrace(t *testing.T) { givesSameTrace(t, bugs{}, 2, 1, 2, 8) }

func givesSameTrace(t *testing.T, world bugs, byDefault uint64, processors ...int) {
	t.Helper()
	first, seeds := number(t, "CLUSTER_FIRST", 0), number(t, "CLUSTER_TWICE", byDefault)
	for seed := first; seed < first+seeds; seed++ {
		once := simulate(t, seed, 250, world)
		for _, n := range processors {
			besideOthers(n, func() {
				requireSameTrace(t, once, simulate(t, seed, 250, world), "seed %d on %d processors", seed, n)
			})
		}
	}
}
