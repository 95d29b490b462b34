package reconciler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// newTestQueue returns a queue whose workers do nothing by themselves, and one of its workers.
func newTestQueue(t *testing.T) (*queue, *worker) {
	t.Helper()
	q := newQueue(1)
	started := make(chan *worker, 1)
	q.start(func(w *worker) { started <- w }, func() bool { return false })
	q.Add(podvolume.Key{Volume: "example.com/plugin/one"})
	return q, <-started
}

// TestAVolumeThatIsDoneWithLeavesNothingInTheQueue: the queue is empty after an operation for all pods, and after one for a
// single pod, which releases the volume while it runs.
func TestAVolumeThatIsDoneWithLeavesNothingInTheQueue(t *testing.T) {
	const name = v1.UniqueVolumeName("example.com/plugin/one")
	for what, begin := range map[string]func(q *queue, w *worker){
		"for all pods": func(q *queue, w *worker) { q.begin(w, nil, nil) },
		"for one pod":  func(q *queue, w *worker) { q.beginForPod(w, nil, nil) },
	} {
		t.Run(what, func(t *testing.T) {
			q, w := newTestQueue(t)
			taken, ok := q.take(w)
			require.True(t, ok)
			require.Equal(t, name, taken)
			_, ok = q.next(w)
			require.True(t, ok)
			begin(q, w)
			if q.end(w, name, nil) {
				_, ok = q.next(w)
				require.False(t, ok)
			}
			_, ok = q.take(w)
			require.False(t, ok)
			q.leave(w)
			assert.True(t, q.isEmpty(), "the queue still knows the volume")
		})
	}
}

// TestAVolumeIsWithOneWorker: a worker that returns to a volume which another worker has leaves it there, and no mark is
// lost.
func TestAVolumeIsWithOneWorker(t *testing.T) {
	const name = v1.UniqueVolumeName("example.com/plugin/one")
	q, first := newTestQueue(t)
	_, ok := q.take(first)
	require.True(t, ok)
	_, ok = q.next(first)
	require.True(t, ok)
	q.beginForPod(first, nil, []podvolume.Key{{Volume: name, Pod: "b"}})

	second := &worker{plugin: first.plugin}
	q.mu.Lock()
	first.plugin.workers++
	first.plugin.free++
	q.mu.Unlock()
	_, ok = q.take(second)
	require.False(t, ok, "no more than most workers are at work")

	q.slow(first, nil) // Its call takes long: another worker may take its place.
	_, ok = q.take(second)
	require.True(t, ok)
	assert.False(t, q.end(first, name, []podvolume.Key{{Volume: name, Pod: "a"}}), "two workers have the volume")
	var pods []string
	for {
		pod, ok := q.next(second)
		if !ok {
			break
		}
		pods = append(pods, string(pod))
	}
	assert.Equal(t, []string{"b", "a"}, pods)
	assert.True(t, q.isEmpty())
}
