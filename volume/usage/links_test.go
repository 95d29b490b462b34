package usage

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLinkSetAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	set, want := newLinkSet(5), map[inode]bool{}
	for i := range 300_000 {
		id := inode{dev: 5, ino: random.Uint64N(50_000)}
		switch i % 10 {
		case 0:
			id.dev = 6
		case 1:
			id.ino <<= 48 // differs in the upper bits alone
		}
		if set.add(id) == want[id] {
			t.Fatalf("%v was there: %v", id, want[id])
		}
		want[id] = true
	}
}

func TestLinkSetIsCompact(t *testing.T) {
	set := newLinkSet(1)
	const n = 100_000
	for i := range uint64(n) {
		set.add(inode{dev: 1, ino: 12 + i})
	}
	places := 0
	for i := range set.shards {
		places += len(set.shards[i].table)
	}
	assert.Less(t, places, 3*n)
}

// TestLinkSetOfManyWorkers adds the same inodes by several workers: exactly one is told that it was the first.
func TestLinkSetOfManyWorkers(t *testing.T) {
	set := newLinkSet(1)
	var first atomic.Int64
	var workers sync.WaitGroup
	const n = 20_000
	for range 8 {
		workers.Go(func() {
			for i := range uint64(n) {
				if set.add(inode{dev: 1, ino: i}) {
					first.Add(1)
				}
			}
		})
	}
	workers.Wait()
	assert.EqualValues(t, n, first.Load())
}
