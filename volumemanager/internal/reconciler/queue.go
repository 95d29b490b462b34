package reconciler

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// queue holds the volumes that have to be planned, and the workers that plan them. A mark names a volume and the pod for
// which it has to be planned; without a pod it has to be planned for all. Only one worker has a volume at a time. It also
// plans the marks that are added while it has the volume.
//
// Each plugin has workers of its own: a slow plugin does not hold up the others. Workers start when volumes are waiting, and
// end when none are.
type queue struct {
	// work is the function that each worker runs; nil until start. over reports whether workers must begin nothing more.
	// most is how many workers a plugin has at most; stuck workers do not count.
	work func(w *worker)
	over func() bool
	most int

	mu      sync.Mutex
	marked  map[podvolume.Key]struct{}
	volumes map[v1.UniqueVolumeName]*queuedVolume // the marked volumes, and those that a worker has
	plugins map[string]*pluginQueue
	timers  map[podvolume.Key]*markTimer
	// stopped says that marks are no longer accepted.
	stopped bool
	// alive counts the workers that are not in an abandoned call. After stop, ended is closed as soon as it is zero.
	alive int
	ended chan struct{}
}

// queuedVolume is a volume that is marked, or that a worker has.
type queuedVolume struct {
	marks   []volume.UniquePodName // in the order in which they came; the empty pod: all pods
	waiting bool                   // it is in the queue of its plugin
	taken   bool                   // a worker has it
}

// pluginQueue holds the volumes that wait for a worker of one plugin.
type pluginQueue struct {
	name    string
	waiting []v1.UniqueVolumeName
	workers int // how many are not stuck
	free    int // how many are not in an operation
}

// markTimer adds a mark at a later time.
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

// start lets the queue start workers, which run work, until over reports true. Call it once.
func (q *queue) start(work func(w *worker), over func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work, q.over = work, over
	for _, p := range q.plugins {
		q.startWorker(p)
	}
}

// stop ends the timers. From now on no mark is added, no worker starts, and none gets another volume.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for h, t := range q.timers {
		t.stop()
		delete(q.timers, h)
	}
	q.reportEnd()
}

// wait returns, after stop, when all workers have ended except those in abandoned calls.
func (q *queue) wait() { <-q.ended }

// reportEnd closes ended if no worker is left to wait for. The caller holds the lock.
func (q *queue) reportEnd() {
	if q.stopped && q.alive == 0 && !isClosed(q.ended) {
		close(q.ended)
	}
}

// Add marks a volume to be planned: for one pod, or for all.
func (q *queue) Add(h podvolume.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(h)
}

// AddPod marks volumes to be planned for a pod.
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

// volume returns the entry of a volume, and makes it if it is missing. The caller holds the lock.
func (q *queue) volume(name v1.UniqueVolumeName) *queuedVolume {
	v := q.volumes[name]
	if v == nil {
		v = &queuedVolume{}
		q.volumes[name] = v
	}
	return v
}

// enqueue puts a marked volume into its plugin's queue, unless a worker has it. The caller holds the lock.
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
	q.startWorker(p)
}

// startWorker starts a worker if volumes wait, every worker of the plugin is in an operation, and the plugin may have one more.
// The caller holds the lock.
func (q *queue) startWorker(p *pluginQueue) {
	if q.work == nil || q.over() || len(p.waiting) == 0 || p.workers >= q.most || p.free > 0 {
		return
	}
	p.workers++
	p.free++
	q.alive++
	go q.work(&worker{plugin: p})
}

// AddAt marks a volume at a later time, or at once if that time has passed. An earlier time that was set before stays.
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

// due adds the mark of a timer, unless another timer has replaced this one.
func (q *queue) due(h podvolume.Key, t *markTimer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timers[h] != t {
		return
	}
	delete(q.timers, h)
	q.add(h)
}

// take gives a worker the next volume of its plugin. It returns false, and the worker ends, if no volume waits or the plugin
// has too many workers.
func (q *queue) take(w *worker) (name v1.UniqueVolumeName, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := w.plugin
	for !q.over() && p.workers <= q.most && len(p.waiting) > 0 {
		name = p.waiting[0]
		p.waiting = p.waiting[1:]
		v := q.volumes[name]
		if v == nil || !v.waiting {
			continue // Another worker has taken it since.
		}
		v.waiting, v.taken = false, true
		w.volume = name
		return name, true
	}
	return "", false
}

// next returns the pod for which the worker has to plan its volume next; the empty pod stands for all pods. If there is no
// mark it releases the volume and returns false.
func (q *queue) next(w *worker) (pod volume.UniquePodName, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	v := q.volumes[w.volume]
	if len(v.marks) == 0 || q.over() {
		q.releaseVolume(w)
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
		v.marks = v.marks[:0] // The next mark reuses its memory.
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

// releaseVolume releases a worker's volume to the other workers. The caller holds the lock.
func (q *queue) releaseVolume(w *worker) {
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
		q.releaseVolume(w) // The plugin's call has ended the goroutine (runtime.Goexit).
	}
	w.plugin.workers--
	w.plugin.free--
	q.startWorker(w.plugin)
	if !w.abandoned {
		q.alive--
		q.reportEnd()
	}
}

// begin notes the operation that a worker is about to run, and adds the marks that are left. The worker keeps the volume.
func (q *queue) begin(w *worker, op *operationexecutor.Operation, left []podvolume.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.operate(w, op, left)
}

// beginForPod is like begin, but releases the volume to other workers.
func (q *queue) beginForPod(w *worker, op *operationexecutor.Operation, left []podvolume.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.operate(w, op, left)
	q.releaseVolume(w)
}

// operate does the work of begin. The caller holds the lock.
func (q *queue) operate(w *worker, op *operationexecutor.Operation, left []podvolume.Key) {
	w.op = op
	for _, h := range left {
		q.add(h)
	}
	w.plugin.free--
	q.startWorker(w.plugin)
}

// slow allows one more worker in place of one whose call takes long.
func (q *queue) slow(w *worker, op *operationexecutor.Operation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.op == op {
		q.replace(w)
	}
}

// abandoned takes a worker whose call may never return out of those that wait waits for.
func (q *queue) abandoned(w *worker, op *operationexecutor.Operation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.op != op {
		return // The call has returned meanwhile.
	}
	q.replace(w)
	w.abandoned = true
	q.alive--
	q.reportEnd()
}

func (q *queue) replace(w *worker) {
	if !w.stuck {
		w.stuck = true
		w.plugin.workers--
		q.startWorker(w.plugin)
	}
}

// end counts a worker as free again after its operation, and adds the marks that follow from it. It reports whether the
// worker has the volume. The worker does not have it if another worker has taken it, or if it released the volume and no
// mark follows.
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

// isEmpty reports whether no volume is marked or being planned. Marks of timers do not count.
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
