package ordered_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/internal/ordered"
)

// A set has the same values as a sorted slice after any additions and removals.
func TestASetIsASortedSlice(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	set := ordered.New(cmp.Compare[int])
	var want []int
	for range 4000 {
		v := random.IntN(300)
		at, found := slices.BinarySearch(want, v)
		if random.IntN(2) == 0 {
			set.Add(v)
			if !found {
				want = slices.Insert(want, at, v)
			}
		} else {
			assert.Equal(t, found, set.Remove(v))
			if found {
				want = slices.Delete(want, at, at+1)
			}
		}
		assert.Equal(t, len(want), set.Len())
		from := random.IntN(300)
		at, _ = slices.BinarySearch(want, from)
		assert.Equal(t, slices.Collect(slices.Values(want[at:])), slices.Collect(set.From(from)))
	}
}

// Add replaces an equal value. A loop over From may end early.
func TestAddReplacesAndFromStops(t *testing.T) {
	type pair struct{ key, value int }
	set := ordered.New(func(a, b pair) int { return cmp.Compare(a.key, b.key) })
	for i := range 100 {
		set.Add(pair{i, 0})
		set.Add(pair{i, i})
	}
	assert.Equal(t, 100, set.Len())
	var seen []pair
	for p := range set.From(pair{key: 97}) {
		seen = append(seen, p)
		if len(seen) == 2 {
			break
		}
	}
	assert.Equal(t, []pair{{97, 97}, {98, 98}}, seen)
}
