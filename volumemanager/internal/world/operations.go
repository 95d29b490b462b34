package world

import (
	"slices"

	"github.com/volumekit/volumekit/operationexecutor"
)

// operations counts the operations of a process that run, and checks the rules that hold when one begins. The world's lock
// guards it.
type operations struct {
	process *Process
	running map[operation]int
}

var _ operationexecutor.Observer = (*operations)(nil)

// operation is one kind of operation on one volume.
type operation struct {
	kind operationexecutor.OperationKind
	at   At
}

// OperationStarted implements operationexecutor.Observer.
func (o *operations) OperationStarted(info operationexecutor.OperationInfo) {
	p, w := o.process, o.process.world
	w.change(func() {
		if p.dead {
			return
		}
		r := o.operationOf(info)
		o.running[r]++
		w.note("begin %s %v", info.Kind, r.at)
		if info.Kind == operationexecutor.OpMount || info.Kind == operationexecutor.OpMap {
			w.mountBegins(r.at)
		}
		if info.Kind == operationexecutor.OpMount {
			w.promise(r.at)
		}
		if (info.Kind == operationexecutor.OpUnmount || info.Kind == operationexecutor.OpUnmap) && w.desired[r.at.Pod] && !w.outlived[r.at] && !w.wantsOther(r.at) {
			w.broken("S5", "%v is being taken from a pod that is wanted", r.at)
		}
		if pod := w.userOf(r.at); releases[info.Kind] && p.node == r.at.Node && pod != "" {
			w.broken("S5", "%s of %v begins, and %s is wanted and uses it", info.Kind, r.at, pod)
		}
	})
}

// OperationStepped implements operationexecutor.Observer.
func (o *operations) OperationStepped(operationexecutor.OperationInfo, operationexecutor.Step) {}

// OperationFinished implements operationexecutor.Observer.
func (o *operations) OperationFinished(info operationexecutor.OperationInfo, result operationexecutor.Result) {
	w := o.process.world
	w.change(func() {
		if o.process.dead {
			return
		}
		r := o.operationOf(info)
		if o.running[r]--; o.running[r] == 0 {
			delete(o.running, r)
		}
		w.note("end %s %v: %v", info.Kind, r.at, result.Class)
	})
}

func (o *operations) operationOf(info operationexecutor.OperationInfo) operation {
	at := At{Node: o.process.node, Volume: o.process.inner[info.VolumeName], Pod: string(info.PodName)}
	if info.NodeName != "" {
		at.Node = string(info.NodeName)
	}
	return operation{kind: info.Kind, at: at}
}

// runs reports whether an operation of one of the kinds runs for at. If at has no pod, operations of all pods count. The lock
// is held.
func (o *operations) runs(at At, kinds ...operationexecutor.OperationKind) bool {
	for r := range o.running {
		same := r.at.Volume == at.Volume && (r.at.Node == at.Node) && (at.Pod == "" || r.at.Pod == at.Pod)
		if same && slices.Contains(kinds, r.kind) {
			return true
		}
	}
	return false
}
