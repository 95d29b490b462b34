package snapshot

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// This file is how the processes of the simulation reach the store, and in what order their goroutines continue: each waits for its turn
// before a request, an event, a plugin call and the next key of a queue. controller/attachdetach has the same for the whole cluster.

// module begins the names of all functions of the library.
const module = "github.com/volumekit/volumekit/"

// callers are the names of the functions at program counters, which take long to find.
var callers = struct {
	sync.Mutex

	names map[[32]uintptr]string
}{names: map[[32]uintptr]string{}}

// whoAsks names the functions of the library that have called, the innermost first.
func whoAsks() string {
	var pcs [32]uintptr
	n := goruntime.Callers(2, pcs[:])
	callers.Lock()
	defer callers.Unlock()
	if names, known := callers.names[pcs]; known {
		return names
	}
	var names []string
	frames := goruntime.CallersFrames(pcs[:n])
	for more := true; more; {
		var frame goruntime.Frame
		frame, more = frames.Next()
		if name, ours := strings.CutPrefix(frame.Function, module); ours {
			names = append(names, name)
		}
	}
	callers.names[pcs] = strings.Join(names, " < ")
	return callers.names[pcs]
}

// turnContext is the context of a process. A worker waits for its turn where it looks at it before it takes its next work.
type turnContext struct {
	context.Context //nolint:containedctx // It is one.

	sim     *sim
	process string
}

// Err implements context.Context.
func (c turnContext) Err() error {
	asker := strings.Split(whoAsks(), " < ")
	if len(asker) > 1 && slices.Contains([]string{"internal/workqueue.(*Queue[...]).Get", "store.(*Mirror[...]).Follow"}, asker[1]) {
		c.sim.turns.Take(c.process + " goes on by " + strings.Join(asker, " < "))
	}
	return c.Context.Err()
}

// link is the way of one process to the store.
type link struct {
	*storetest.Faulty
	store.Lessor

	sim     *sim
	process string
	mu      sync.Mutex
	off     bool
	ended   []context.CancelFunc // of the watches
}

var errLink = errors.New("no route to host")

func (s *sim) newLink(process string) *link {
	l := &link{sim: s, process: process}
	l.Faulty = storetest.NewFaulty(s.memory, storetest.Faults{
		Seed: uint64(s.luck(1 << 30)), Conflict: 0.02, Refuse: 0.02, LoseAnswer: 0.02,
	})
	l.Lessor = store.NewLeaseObjects(l, store.LeaseObjectsOptions{Jitter: -1})
	return l
}

func (l *link) request(ctx context.Context, what string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.sim.turns.Take(l.process + " " + what + " by " + whoAsks())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off {
		return errLink
	}
	return nil
}

// cutOff cuts the process off from the store, or ends that. Its watches end.
func (l *link) cutOff(off bool) {
	l.mu.Lock()
	l.off = off
	ended := l.ended
	l.ended = nil
	l.mu.Unlock()
	for _, end := range ended {
		end()
	}
	synctest.Wait()
}

// Get implements store.Store.
func (l *link) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if err := l.request(ctx, "get "+key.String()); err != nil {
		return nil, err
	}
	obj, err := l.Faulty.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if obj = l.sim.seen(obj); obj == nil {
		return nil, store.ErrNotFound
	}
	return obj, nil
}

// List implements store.Store.
func (l *link) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if err := l.request(ctx, "list "+kind.Kind); err != nil {
		return store.List{}, err
	}
	list, err := l.Faulty.List(ctx, kind, namespace)
	var items []runtime.Object
	for _, obj := range list.Items {
		if obj = l.sim.seen(obj); obj != nil {
			items = append(items, obj)
		}
	}
	list.Items = items
	return list, err
}

// Create implements store.Store.
func (l *link) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := l.request(ctx, "create "+describe(obj)); err != nil {
		return nil, err
	}
	return l.Faulty.Create(ctx, l.sim.withUID(obj))
}

// Update implements store.Store.
func (l *link) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := l.request(ctx, "update "+describe(obj)); err != nil {
		return nil, err
	}
	return l.Faulty.Update(ctx, obj)
}

// Delete implements store.Store.
func (l *link) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	if err := l.request(ctx, "delete "+key.String()); err != nil {
		return err
	}
	return l.Faulty.Delete(ctx, key, p)
}

// Watch implements store.Store. Its events may all be late, and it may end before any of them.
func (l *link) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	if err := l.request(ctx, "watch "+kind.Kind); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	events, err := l.sim.memory.Watch(ctx, kind, namespace, version)
	if err != nil {
		end()
		return nil, err
	}
	l.mu.Lock()
	l.ended = append(l.ended, end)
	l.mu.Unlock()
	var late time.Duration
	if luck := l.sim.luck(100); luck < 15 {
		late = time.Duration(1+luck) * time.Second / 2
	}
	out, label := make(chan store.Event), l.process+" sees "+kind.Kind+" of "+whoAsks()
	go func() {
		defer close(out)
		defer end()
		l.relay(ctx, label, late, events, out)
	}()
	return out, nil
}

// relay passes events on, each in its turn, until they or ctx end, or the watch is cut.
func (l *link) relay(ctx context.Context, label string, late time.Duration, events <-chan store.Event, out chan<- store.Event) {
	for event := range events {
		if late > 0 && !l.sim.isCalm() {
			pause(ctx, late)
		}
		if !l.sim.turns.TakeUnless(ctx, label) || l.sim.luck(100) < 3 {
			return
		}
		if event.Object != nil {
			if event.Object = l.sim.seen(event.Object); event.Object == nil {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case out <- event:
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func describe(obj runtime.Object) string {
	o, _ := obj.(store.Object)
	return fmt.Sprintf("%T %s %s", obj, store.NameOf(o), o.GetResourceVersion())
}
