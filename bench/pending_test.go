package bench

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	npo "k8s.io/kubernetes/pkg/volume/util/nestedpendingoperations"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/operationexecutor"
)

// operations starts operations on volumes, one at a time for each.
type operations interface {
	// start starts one that does nothing and returns how to wait for its end; ok is false while the volume has another.
	start(name v1.UniqueVolumeName) (wait func(), ok bool)
	// block starts one that ends when the gate is opened.
	block(name v1.UniqueVolumeName)
	pending(name v1.UniqueVolumeName) bool
	// open opens the gate and waits for all.
	open()
}

// manyOperations makes each implementation of operations.
var manyOperations = []struct {
	impl string
	make func(b *testing.B) operations
}{
	{"k8s", func(b *testing.B) operations { return newK8sOperations(b) }},
	{"ours", func(b *testing.B) operations { return newToldOperations(b) }},
	{"ours-done", func(b *testing.B) operations { return newOurOperations(b) }},
	{"limit", func(*testing.B) operations { return newBareOperations() }},
}

var pendingSizes = []int{0, 100, 1000, 10_000}

// pendingVolume names volume i, with a name as long as those of volumes are.
func pendingVolume(i int) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fmt.Sprintf("example.com/fake/vol-%d-0", i))
}

func pendingVolumes(n int) []v1.UniqueVolumeName {
	names := make([]v1.UniqueVolumeName, n)
	for i := range names {
		names[i] = pendingVolume(i)
	}
	return names
}

// BenchmarkPendingRun starts an operation that does nothing and waits for its end, with n others under way.
func BenchmarkPendingRun(b *testing.B) {
	for _, n := range pendingSizes {
		for _, many := range manyOperations {
			b.Run(fmt.Sprintf("pending=%d/impl=%s", n, many.impl), func(b *testing.B) {
				ops := many.make(b)
				defer ops.open()
				for _, name := range pendingVolumes(n) {
					ops.block(name)
				}
				// Two names in turn: Kubernetes frees a key a moment after it has told that the operation has ended.
				names := [2]v1.UniqueVolumeName{pendingVolume(n), pendingVolume(n + 1)}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					wait, ok := ops.start(names[i%2])
					for !ok {
						wait, ok = ops.start(names[i%2])
					}
					wait()
				}
			})
		}
	}
}

// BenchmarkPendingBurst is the whole cost of n operations that run at once: their starts and their ends.
func BenchmarkPendingBurst(b *testing.B) {
	for _, n := range pendingSizes[1:] {
		names := pendingVolumes(n)
		for _, many := range manyOperations {
			b.Run(fmt.Sprintf("operations=%d/impl=%s", n, many.impl), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					ops := many.make(b)
					for _, name := range names {
						ops.block(name)
					}
					ops.open()
				}
			})
		}
	}
}

// BenchmarkIsPending asks about a volume without an operation, with n operations under way.
func BenchmarkIsPending(b *testing.B) {
	for _, n := range pendingSizes {
		for _, many := range manyOperations {
			b.Run(fmt.Sprintf("pending=%d/impl=%s", n, many.impl), func(b *testing.B) {
				ops := many.make(b)
				defer ops.open()
				for _, name := range pendingVolumes(n) {
					ops.block(name)
				}
				name := pendingVolume(n + 7)
				b.ReportAllocs()
				for b.Loop() {
					if ops.pending(name) {
						b.Fatal("pending")
					}
				}
			})
		}
	}
}

// k8sOperations are those of Kubernetes' nestedpendingoperations.
type k8sOperations struct {
	b     *testing.B
	table npo.NestedPendingOperations
	gate  chan struct{}
	ended chan struct{}
	noop  volumetypes.GeneratedOperations
	wait  func()
}

func newK8sOperations(b *testing.B) *k8sOperations {
	o := &k8sOperations{b: b, table: npo.NewNestedPendingOperations(true), gate: make(chan struct{}), ended: make(chan struct{}, 1)}
	o.noop = volumetypes.GeneratedOperations{
		OperationName: "noop",
		OperationFunc: func() volumetypes.OperationContext { return volumetypes.NewOperationContext(nil, nil, false) },
		CompleteFunc:  func(volumetypes.CompleteFuncParam) { o.ended <- struct{}{} },
	}
	o.wait = func() { <-o.ended }
	return o
}

func (o *k8sOperations) start(name v1.UniqueVolumeName) (wait func(), ok bool) {
	return o.wait, o.table.Run(name, "", "", o.noop) == nil
}

func (o *k8sOperations) block(name v1.UniqueVolumeName) {
	must(o.b, o.table.Run(name, "", "", volumetypes.GeneratedOperations{
		OperationName: "blocked",
		OperationFunc: func() volumetypes.OperationContext {
			<-o.gate
			return volumetypes.NewOperationContext(nil, nil, false)
		},
		CompleteFunc: func(volumetypes.CompleteFuncParam) {},
	}))
}

func (o *k8sOperations) pending(name v1.UniqueVolumeName) bool {
	return o.table.IsOperationPending(name, "", "")
}

func (o *k8sOperations) open() {
	close(o.gate)
	o.table.Wait()
}

// ourOperations are those of an executor, with operations of our own: the executor's whole path, without the plugin.
type ourOperations struct {
	operationexecutor.OperationGenerator
	b        *testing.B
	executor *operationexecutor.Executor
	gate     chan struct{}
	do       func(ctx context.Context) error
	kind     operationexecutor.OperationKind
	op       *operationexecutor.Operation
	wait     func()
}

func newOurOperations(b *testing.B) *ourOperations {
	o := &ourOperations{b: b, gate: make(chan struct{})}
	o.executor = operationexecutor.NewOperationExecutor(o, operationexecutor.ExecutorOptions{WorkersPerPlugin: 1 << 20})
	o.wait = func() { <-o.op.Done() }
	return o
}

// toldKind is the kind of the operations that a caller waits for.
const toldKind = operationexecutor.OpUnmountDevice

// GenerateUnmountDeviceFunc makes the operation that is to be started.
func (o *ourOperations) GenerateUnmountDeviceFunc(v operationexecutor.AttachedVolume, _ operationexecutor.ActualStateOfWorldMounterUpdater) *operationexecutor.Operation {
	return operationexecutor.NewOperation(operationexecutor.OperationInfo{
		Kind: o.kind, PluginName: v.PluginName, VolumeName: v.VolumeName,
	}, o.do)
}

func (o *ourOperations) run(name v1.UniqueVolumeName) (err error) {
	// The context is one that can end, as that of every program can.
	o.op, err = o.executor.UnmountDevice(o.b.Context(), operationexecutor.AttachedVolume{VolumeName: name, PluginName: "example.com/fake"}, nil)
	return err
}

func (o *ourOperations) start(name v1.UniqueVolumeName) (wait func(), ok bool) {
	o.do, o.kind = func(context.Context) error { return nil }, toldKind
	return o.wait, o.run(name) == nil
}

func (o *ourOperations) block(name v1.UniqueVolumeName) {
	o.do, o.kind = func(context.Context) error { <-o.gate; return nil }, operationexecutor.OpAttach
	must(o.b, o.run(name))
}

func (o *ourOperations) pending(name v1.UniqueVolumeName) bool {
	return o.executor.IsOperationPending(operationexecutor.Key{Volume: name})
}

func (o *ourOperations) open() {
	close(o.gate)
	must(o.b, o.executor.Wait(context.Background()))
}

// toldOperations are ourOperations that tell of their end by a call, as Kubernetes' do and as our manager has it, and not
// by the channel that each operation makes when it is asked for it.
type toldOperations struct{ ourOperations }

func newToldOperations(b *testing.B) *toldOperations {
	o := &toldOperations{ourOperations{b: b, gate: make(chan struct{})}}
	ended := make(chan struct{}, 1)
	o.executor = operationexecutor.NewOperationExecutor(o, operationexecutor.ExecutorOptions{
		WorkersPerPlugin: 1 << 20,
		KeyFreed: func(info operationexecutor.OperationInfo) {
			if info.Kind == toldKind {
				ended <- struct{}{}
			}
		},
	})
	o.wait = func() { <-ended }
	return o
}

// bareOperations are goroutines and a map of names.
type bareOperations struct {
	table *limits.Pending
	gate  chan struct{}
	ended chan struct{}
	wait  func()
}

func newBareOperations() *bareOperations {
	o := &bareOperations{table: limits.NewPending(), gate: make(chan struct{}), ended: make(chan struct{}, 1)}
	o.wait = func() { <-o.ended }
	return o
}

func (o *bareOperations) start(name v1.UniqueVolumeName) (wait func(), ok bool) {
	return o.wait, o.table.Run(string(name), func() { o.ended <- struct{}{} })
}

func (o *bareOperations) block(name v1.UniqueVolumeName) {
	o.table.Run(string(name), func() { <-o.gate })
}

func (o *bareOperations) pending(name v1.UniqueVolumeName) bool {
	return o.table.IsPending(string(name))
}

func (o *bareOperations) open() {
	close(o.gate)
	o.table.Wait()
}
