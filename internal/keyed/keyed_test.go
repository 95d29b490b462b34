package keyed_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/internal/keyed"
)

var errBroken = errors.New("broken")

func key(volume, pod, node string) keyed.Key { return keyed.Key{Volume: volume, Pod: pod, Node: node} }

func operation(k keyed.Key, kind string) keyed.Operation { return keyed.Operation{Key: k, Kind: kind} }

// newTable returns a table without jitter.
func newTable() *keyed.Table { return keyed.New(backoff.Policy{Jitter: -1}) }

// try locks k. It returns a nil lock if that is refused.
func try(table *keyed.Table, k keyed.Key, s keyed.Operation) (*keyed.Lock, *keyed.Refusal) {
	lock := &keyed.Lock{
		Operation: s, AllPods: k.Pod == "" && s.Key.Pod != "", AllNodes: k.Node == "" && s.Key.Node != "",
	}
	if refusal := table.Begin(lock); refusal != nil {
		return nil, refusal
	}
	return lock, nil
}

func begin(t *testing.T, table *keyed.Table, k keyed.Key, kind string) *keyed.Lock {
	t.Helper()
	lock, refusal := try(table, k, operation(k, kind))
	require.Nil(t, refusal)
	return lock
}

func TestWhichKeysMeet(t *testing.T) {
	tests := []struct {
		a, b  keyed.Key
		meets bool
	}{
		{key("v", "", ""), key("v", "", ""), true},
		{key("v", "", ""), key("w", "", ""), false},
		{key("v", "", ""), key("v", "p", ""), true},
		{key("v", "", ""), key("v", "", "n"), true},
		{key("v", "p", ""), key("v", "p", ""), true},
		{key("v", "p", ""), key("v", "q", ""), false},
		{key("v", "p", ""), key("w", "p", ""), false},
		{key("v", "p", ""), key("v", "", "n"), true},
		{key("v", "", "n"), key("v", "", "n"), true},
		{key("v", "", "n"), key("v", "", "m"), false},
		{key("v", "p", "n"), key("v", "p", "m"), false},
		{key("v", "p", "n"), key("v", "q", "n"), false},
		{key("", "", ""), key("", "", ""), false},
		{key("", "p", ""), key("", "p", ""), false},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v %v", test.a, test.b), func(t *testing.T) {
			assert.Equal(t, test.meets, test.a.Meets(test.b))
			assert.Equal(t, test.meets, test.b.Meets(test.a))
			table := newTable()
			begin(t, table, test.a, "first")
			assert.Equal(t, test.meets, table.Pending(test.b) != nil)
			_, refusal := try(table, test.b, operation(test.b, "second"))
			assert.Equal(t, test.meets, refusal != nil)
		})
	}
}

// TestIndexAgreesWithTheRule compares the table's index with Key.Meets, for random locks.
func TestIndexAgreesWithTheRule(t *testing.T) {
	names := []string{"", "a", "b", "c"}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func() keyed.Key {
		return key(names[1+random.IntN(2)], names[random.IntN(4)], names[random.IntN(4)])
	}
	table, held := newTable(), map[*keyed.Lock]bool{}
	for range 20000 {
		if len(held) > 0 && random.IntN(2) == 0 {
			for lock := range held {
				table.End(lock)
				delete(held, lock)
				break
			}
			continue
		}
		k, want := pick(), false
		for lock := range held {
			want = want || lock.Key().Meets(k)
		}
		lock, refusal := try(table, k, operation(k, "op"))
		require.Equal(t, want, refusal != nil, "%v", k)
		if lock != nil {
			held[lock] = true
			continue
		}
		require.True(t, held[refusal.Running])
		require.True(t, refusal.Running.Key().Meets(k))
	}
	for lock := range held {
		table.End(lock)
	}
	assert.Zero(t, table.Len(), "nothing may stay when nothing runs")
}

func TestFailuresWaitLongerEachTimeAndSuccessForgetsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, k := newTable(), key("v", "p", "")
		for i, wait := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
			lock := begin(t, table, k, "mount")
			table.Fail(lock.Operation, errBroken, 0)
			table.End(lock)
			_, refusal := try(table, k, operation(k, "mount"))
			require.NotNil(t, refusal)
			assert.Equal(t, keyed.Failure{Attempts: i + 1, Until: time.Now().Add(wait), Err: errBroken}, *refusal.Failure)
			time.Sleep(wait - time.Nanosecond)
			_, refusal = try(table, k, operation(k, "mount"))
			require.NotNil(t, refusal, "one nanosecond early")
			time.Sleep(time.Nanosecond)
		}
		lock := begin(t, table, k, "mount")
		table.Succeed(lock)
		table.End(lock)
		assert.Zero(t, table.Len())
		lock = begin(t, table, k, "mount")
		table.Fail(lock.Operation, errBroken, 0)
		table.End(lock)
		_, refusal := try(table, k, operation(k, "mount"))
		assert.Equal(t, 1, refusal.Failure.Attempts)
	})
}

func TestBackoffIsPerSubjectAndKind(t *testing.T) {
	table, whole := newTable(), key("v", "", "")
	for _, pod := range []string{"p", "q"} {
		lock, refusal := try(table, whole, operation(key("v", pod, ""), "mount"))
		require.Nil(t, refusal, "pod q must not wait for the failure of pod p")
		table.Fail(lock.Operation, errBroken, 0)
		table.End(lock)
	}
	_, refusal := try(table, whole, operation(key("v", "p", ""), "mount"))
	require.NotNil(t, refusal)
	begin(t, table, key("v", "p", ""), "unmount")
}

func TestWhatRunsIsToldBeforeWhatFailed(t *testing.T) {
	table, k := newTable(), key("v", "", "")
	lock := begin(t, table, k, "mount")
	table.Fail(lock.Operation, errBroken, 0)
	_, refusal := try(table, k, operation(k, "mount"))
	assert.Same(t, lock, refusal.Running)
	assert.Nil(t, refusal.Failure)
	table.End(lock)
}

func TestForget(t *testing.T) {
	fill := func(t *testing.T) *keyed.Table {
		table := newTable()
		for _, k := range []keyed.Key{key("v", "p", ""), key("v", "q", ""), key("v", "", "n"), key("v", "", ""), key("w", "p", "")} {
			lock := begin(t, table, k, "op")
			table.Fail(lock.Operation, errBroken, 0)
			table.End(lock)
		}
		return table
	}
	waits := func(table *keyed.Table, k keyed.Key) bool {
		lock, refusal := try(table, k, operation(k, "op"))
		if lock != nil {
			table.End(lock)
		}
		return refusal != nil
	}
	table := fill(t)
	table.Forget(key("v", "p", ""))
	assert.False(t, waits(table, key("v", "p", "")))
	assert.True(t, waits(table, key("v", "q", "")))
	assert.True(t, waits(table, key("v", "", "")))
	assert.True(t, waits(table, key("w", "p", "")))
	table.Forget(key("v", "", "n"))
	assert.False(t, waits(table, key("v", "", "n")))
	assert.True(t, waits(table, key("v", "", "")))
	table.Forget(key("v", "", ""))
	assert.False(t, waits(table, key("v", "q", "")))
	assert.Equal(t, 1, table.Len(), "only w is left")
}

func TestFailuresOfOperationsThatAreNotRetriedGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable()
		for i := range 10000 {
			lock := begin(t, table, key(strconv.Itoa(i), "", ""), "op")
			table.Fail(lock.Operation, errBroken, 0)
			table.End(lock)
			time.Sleep(2 * time.Second)
		}
		assert.Less(t, table.Len(), 200)
		assert.Greater(t, table.Len(), 60, "those that may still be tried are kept")
	})
}

// BenchmarkPending shows that a query costs the same for ten locks as for a hundred thousand. It only reads maps and allocates
// nothing.
func BenchmarkPending(b *testing.B) {
	for _, n := range []int{10, 1000, 100000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			table := newTable()
			for i := range n {
				k := key("shared", strconv.Itoa(i), "")
				try(table, k, operation(k, "op"))
				k = key(strconv.Itoa(i), "", "")
				try(table, k, operation(k, "op"))
			}
			b.ReportAllocs()
			for b.Loop() {
				table.Pending(key("shared", "none", ""))
				table.Pending(key("shared", "", ""))
				table.Pending(key("none", "", ""))
			}
		})
	}
}
