package reconciler

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// queue holds the volumes that have to be looked at, and who looks at them. A mark says what of a volume is to be looked
// at: what it is to one pod, or, where the holder has no pod, all of it. One worker has a volume at a time. What is marked while a
// worker has the volume, that worker looks at before it lets the volume go.
//
// Each plugin has workers of its own, so that no plugin takes those of another. They are started when there is something to
// do, and end when there is nothing.
type queue struct {
	// work is the code of a worker, most how many a plugin has, stuck ones not counted. over reports whether none is to begin
	// anything more. nil: none has been started yet.
	work func(w *worker)
	over func() bool
	most int

	mu      sync.Mutex
	marked  map[podvolume.Key]struct{}
	volumes map[v1.UniqueVolumeName]*queuedVolume // those that are marked, and those that a worker has
	plugins map[string]*pluginQueue
	timers  map[podvolume.Key]*markTimer
	// stopped says that nothing is marked any more.
	stopped bool
	// alive are the workers that are not in an abandoned call. ended is closed when there is none, after stop.
	alive int
	ended chan struct{}
}

// queuedVolume is a volume that is marked, or that a worker has.
type queuedVolume struct {
	marks   []volume.UniquePodName // in the order in which they came; empty: all of it
	waiting bool                   // it is in the queue of its plugin
	taken   bool                   // a worker has it
}

// pluginQueue is what waits for a worker of one plugin.
type pluginQueue struct {
	name    string
	waiting []v1.UniqueVolumeName
	workers int // those that are not stuck
	free    int // those that are not in an operation
}

// markTimer is a mark that is due at a time.
type markTimer struct {
	at   time.Time
	stop func() bool
}

func newQueue(most int) *queue {
	return &queue{
		most: most, marked: make(map[podvolume.Key]struct{}), volumes: make(map[v1.UniqueVolumeName]*queuedVolume),
		plugins: make(map[string]*pluginQueue), timers: make(map[podvolume.Key]*markTimer), ended: make(chan struct{}),
	}
}

// start lets workers be started, whose code is work, until over. It is called once.
func (q *queue) start(work func(w *worker), over func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work, q.over = work, over
	for _, p := range q.plugins {
		q.employ(p)
	}
}

// stop ends the timers. No worker is started any more, and none gets another volume.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for h, t := range q.timers {
		t.stop()
		delete(q.timers, h)
	}
	q.tellEnd()
}

// wait returns, after stop, when no worker is left but those whose call was abandoned.
func (q *queue) wait() { <-q.ended }

// tellEnd closes ended when nobody is waited for. The lock must be held.
func (q *queue) tellEnd() {
	if q.stopped && q.alive == 0 && !isClosed(q.ended) {
		close(q.ended)
	}
}

// Add marks what is to be looked at.
func (q *queue) Add(h podvolume.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(h)
}

// AddPod marks what volumes are to a pod.
func (q *queue) AddPod(pod volume.UniquePodName, names []v1.UniqueVolumeName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range names {
		q.add(podvolume.Key{Volume: name, Pod: pod})
	}
}

func (q *queue) add(h podvolume.Key) {
	if q.stopped {
		return
	}
	if _, ok := q.marked[h]; !ok {
		q.marked[h] = struct{}{}
		v := q.volume(h.Volume)
		v.marks = append(v.marks, h.Pod)
	}
	q.enqueue(h.Volume)
}

// volume returns the entry of a volume. The lock must be held.
func (q *queue) volume(name v1.UniqueVolumeName) *queuedVolume {
	v := q.volumes[name]
	if v == nil {
		v = &queuedVolume{}
		q.volumes[name] = v
	}
	return v
}

// enqueue lets a volume that is marked wait for a worker, unless one has it. The lock must be held.
func (q *queue) enqueue(name v1.UniqueVolumeName) {
	v := q.volumes[name]
	if v.taken || v.waiting {
		return
	}
	v.waiting = true
	plugin, _, _ := volume.SplitUniqueName(name)
	p := q.plugins[plugin]
	if p == nil {
		p = &pluginQueue{name: plugin}
		q.plugins[plugin] = p
	}
	p.waiting = append(p.waiting, name)
	q.employ(p)
}

// employ starts a worker for what waits, if there may be one more and all others are in operations, which may take long. The lock
// must be held.
func (q *queue) employ(p *pluginQueue) {
	if q.work == nil || q.over() || len(p.waiting) == 0 || p.workers >= q.most || p.free > 0 {
		return
	}
	p.workers++
	p.free++
	q.alive++
	go q.work(&worker{plugin: p})
}

// AddAt marks at a time what is to be looked at; one that has passed means now. What is to be marked earlier already stays so.
func (q *queue) AddAt(h podvolume.Key, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wait := time.Until(at)
	if wait <= 0 {
		q.add(h)
		return
	}
	if old, ok := q.timers[h]; ok {
		if !at.Before(old.at) {
			return
		}
		old.stop()
	}
	if q.stopped {
		return
	}
	t := &markTimer{at: at}
	t.stop = time.AfterFunc(wait, func() { q.due(h, t) }).Stop
	q.timers[h] = t
}

// due marks what a timer is for, unless another timer has taken its place.
func (q *queue) due(h podvolume.Key, t *markTimer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timers[h] != t {
		return
	}
	delete(q.timers, h)
	q.add(h)
}

// take gives a worker the next volume of its plugin. The worker ends when there is none, or when there are too many workers.
func (q *queue) take(w *worker) (name v1.UniqueVolumeName, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := w.plugin
	for !q.over() && p.workers <= q.most && len(p.waiting) > 0 {
		name = p.waiting[0]
		p.waiting = p.waiting[1:]
		v := q.volumes[name]
		if v == nil || !v.waiting {
			continue // Another worker came back to it.
		}
		v.waiting, v.taken = false, true
		w.volume = name
		return name, true
	}
	return "", false
}

// next returns what the worker has to look at next of its volume. It lets the volume go when there is nothing.
func (q *queue) next(w *worker) (pod volume.UniquePodName, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	v := q.volumes[w.volume]
	if len(v.marks) == 0 || q.over() {
		q.letGo(w)
		return "", false
	}
	if _, whole := q.marked[podvolume.Key{Volume: w.volume}]; whole {
		q.unmark(w.volume, v.marks...)
		v.marks = v.marks[:0]
		return "", true
	}
	pod = v.marks[0]
	q.unmark(w.volume, pod)
	if len(v.marks) == 1 {
		v.marks = v.marks[:0] // The next mark takes its place.
		return pod, true
	}
	v.marks = v.marks[1:]
	return pod, true
}

func (q *queue) unmark(name v1.UniqueVolumeName, pods ...volume.UniquePodName) {
	for _, pod := range pods {
		delete(q.marked, podvolume.Key{Volume: name, Pod: pod})
	}
}

// letGo lets other workers have the volume of a worker. The lock must be held.
func (q *queue) letGo(w *worker) {
	name := w.volume
	w.volume = ""
	v := q.volumes[name]
	v.taken = false
	if len(v.marks) > 0 {
		q.enqueue(name)
		return
	}
	delete(q.volumes, name)
}

// leave ends a worker.
func (q *queue) leave(w *worker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.volume != "" {
		q.letGo(w) // A call of the plugin has ended the goroutine.
	}
	w.plugin.workers--
	w.plugin.free--
	q.employ(w.plugin)
	if !w.abandoned {
		q.alive--
		q.tellEnd()
	}
}

// begin notes which operation a worker is about to run, and marks what is left to be looked at then. The worker keeps the volume.
func (q *queue) begin(w *worker, op *operationexecutor.Operation, left []podvolume.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.operate(w, op, left)
}

// beginForPod is begin of an operation that leaves the volume to other workers.
func (q *queue) beginForPod(w *worker, op *operationexecutor.Operation, left []podvolume.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.operate(w, op, left)
	q.letGo(w)
}

// operate is begin with the lock held.
func (q *queue) operate(w *worker, op *operationexecutor.Operation, left []podvolume.Key) {
	w.op = op
	for _, h := range left {
		q.add(h)
	}
	w.plugin.free--
	q.employ(w.plugin)
}

// slow lets another worker be started in the place of one that is in a call that takes long.
func (q *queue) slow(w *worker, op *operationexecutor.Operation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.op == op {
		q.replace(w)
	}
}

// abandoned lets nobody wait for a worker that is in a call that may never return.
func (q *queue) abandoned(w *worker, op *operationexecutor.Operation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.op != op {
		return // The call has returned meanwhile.
	}
	q.replace(w)
	w.abandoned = true
	q.alive--
	q.tellEnd()
}

func (q *queue) replace(w *worker) {
	if !w.stuck {
		w.stuck = true
		w.plugin.workers--
		q.employ(w.plugin)
	}
}

// end takes a worker back among the others when it has come back from its operation, and marks what is to be looked at because of
// that. It reports whether the worker has the volume: not, when another one has it, or when it has let the volume go and nothing is
// to be looked at.
func (q *queue) end(w *worker, name v1.UniqueVolumeName, look []podvolume.Key) (has bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.op = nil
	w.plugin.free++
	if w.stuck {
		w.stuck = false
		w.plugin.workers++
	}
	if w.abandoned && !q.stopped {
		w.abandoned = false
		q.alive++
	}
	if w.volume == "" && len(look) > 0 && !q.stopped {
		if v := q.volume(name); !v.taken {
			v.waiting, v.taken = false, true
			w.volume = name
		}
	}
	for _, h := range look {
		q.add(h)
	}
	return w.volume != ""
}

// isEmpty reports whether nothing is to be looked at, what is to be marked at a time not counted.
func (q *queue) isEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.volumes) == 0
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
