package attachdetach_test

import (
	"context"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
)

// This file decides who goes on next. The controllers have many goroutines, and whatever they share with each other they read and
// write between two turns: one that asks the store or the storage, takes the next key of a queue, or begins an operation waits
// for its turn.

// module is what the names of all functions of ours begin with.
const module = "github.com/volumekit/volumekit/"

// turn waits for the turn of what a process is about to do.
func (c *cluster) turn(process, what string) {
	c.turns.Take(process + " " + what + " by " + whoAsks())
}

// whoAsks names the functions of the code under test that have called, the innermost first: two that ask for the same thing are told
// apart by it, on every machine.
func whoAsks() string {
	var callers [48]uintptr
	n := goruntime.Callers(2, callers[:])
	known.Lock()
	defer known.Unlock()
	names, is := known.names[callers]
	if !is {
		names = strings.Join(functionsAt(callers[:n]), " < ")
		known.names[callers] = names
	}
	return names
}

// known are the names of callers, which take long to find out.
var known = struct {
	sync.Mutex

	names  map[[48]uintptr]string
	before map[uintptr]bool
}{names: map[[48]uintptr]string{}, before: map[uintptr]bool{}}

// functionsAt returns the functions of ours at program counters, those that are inlined too.
func functionsAt(callers []uintptr) []string {
	var names []string
	frames := goruntime.CallersFrames(callers)
	for more := true; more; {
		var frame goruntime.Frame
		frame, more = frames.Next()
		if name, ours := strings.CutPrefix(frame.Function, module); ours && !strings.HasPrefix(name, "controller/attachdetach_test") {
			names = append(names, name)
		}
	}
	return names
}

// workerContext is the context of a process. A worker that looks whether it may go on, right before it takes what it works on next,
// waits for its turn there: so no worker takes a key while others still add some.
type workerContext struct {
	context.Context //nolint:containedctx // It is one.

	cluster *cluster
	process string
}

// beforeWork are the functions that look at the context right before they begin anew.
var beforeWork = []string{
	"internal/workqueue.(*Queue[...]).Get",
	"store.(*Mirror[...]).Follow",
	"controller/attachdetach.(*Controller).verifyAll",
	"controller/attachdetach.(*Controller).recoverAttachments",
}

// Err implements context.Context.
func (c workerContext) Err() error {
	if c.isBeforeWork() {
		c.cluster.turn(c.process, "goes on")
	}
	return c.Context.Err()
}

// isBeforeWork reports whether the caller of Err is one of beforeWork.
func (workerContext) isBeforeWork() bool {
	var caller [1]uintptr
	goruntime.Callers(3, caller[:])
	known.Lock()
	defer known.Unlock()
	is, seen := known.before[caller[0]]
	if !seen {
		names := functionsAt(caller[:])
		is = len(names) > 0 && slices.Contains(beforeWork, names[0])
		known.before[caller[0]] = is
	}
	return is
}

// operations has each operation begin, step and end in its turn.
type operations struct {
	cluster *cluster
	process string
}

// OperationStarted implements operationexecutor.Observer.
func (o operations) OperationStarted(info operationexecutor.OperationInfo) { o.turn("begins", info) }

// OperationStepped implements operationexecutor.Observer.
func (o operations) OperationStepped(operationexecutor.OperationInfo, operationexecutor.Step) {}

// OperationFinished implements operationexecutor.Observer.
func (o operations) OperationFinished(info operationexecutor.OperationInfo, _ operationexecutor.Result) {
	o.turn("ends", info)
}

func (o operations) turn(what string, info operationexecutor.OperationInfo) {
	o.cluster.turn(o.process, what+" "+string(info.Kind)+" "+string(info.VolumeName)+" "+string(info.NodeName))
}

// world is the store as the world changes it, outside of all turns: all watchers receive a change before the next one is made.
type world struct {
	*store.Memory

	cluster *cluster
}

func (w world) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	defer synctest.Wait()
	return w.Memory.Create(ctx, w.cluster.withUID(obj))
}

func (w world) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	defer synctest.Wait()
	return w.Memory.Update(ctx, obj)
}

func (w world) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	defer synctest.Wait()
	return w.Memory.Delete(ctx, key, preconditions)
}
