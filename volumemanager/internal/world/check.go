package world

import (
	"maps"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/operationexecutor"
)

// Check implements simulation.World: it holds the rules of safety.
func (w *World) Check() error {
	beliefs := w.beliefs()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkOrder()
	w.checkRecords()
	for _, node := range w.nodes {
		w.checkBelief(w.processes[node], beliefs[node])
		w.checkCalls(w.processes[node], beliefs[node])
	}
	w.checkReady(beliefs)
	return w.fault()
}

func (w *World) beliefs() map[string]Belief {
	beliefs := make(map[string]Belief, len(w.nodes))
	for _, node := range w.nodes {
		beliefs[node] = w.engines[node].Belief()
	}
	return beliefs
}

// checkOrder holds S3 and S8 of the truth.
func (w *World) checkOrder() {
	for at := range w.mounted {
		whole := At{Node: at.Node, Volume: at.Volume}
		if w.volumes[at.Volume].Stageable && !w.staged[whole] && !w.foreign[whole] {
			w.broken("S3", "%v is set up and not staged", at)
		}
	}
	for at := range w.staged {
		if w.volumes[at.Volume].Attachable && !w.attached[at] {
			w.broken("S3", "%v is staged and not attached", at)
		}
	}
}

// checkRecords holds S4 for what is there.
func (w *World) checkRecords() {
	for at := range w.mounted {
		if r := w.recordOf(at, false); r == nil || !r.Pods[w.pods[at.Pod].UID] {
			w.broken("S4", "%v is set up and not on record", at)
		}
	}
	for at := range w.staged {
		if r := w.recordOf(at, false); r == nil || r.Staged == "" {
			w.broken("S4", "%v is staged and not on record", at)
		}
	}
	for at := range w.attached {
		if r := w.recordOf(at, true); r == nil || !r.Attached {
			w.broken("S4", "%v is attached and not on record", at)
		}
	}
}

// checkBelief holds S2, and S8 of what is believed.
func (w *World) checkBelief(p *Process, b Belief) {
	if p.node == Controller || !w.config.WithController {
		w.compare(b.Attached, w.attached, p, func(at At) bool {
			return p.runs(at, operationexecutor.OpAttach, operationexecutor.OpDetach)
		}, "attached")
	}
	if p.node == Controller {
		if !w.misled[Controller] {
			w.checkExclusive(b.Attached)
		}
		return
	}
	w.compare(b.Staged, w.staged, p, func(at At) bool {
		return p.runs(at, operationexecutor.OpMount, operationexecutor.OpUnmountDevice, operationexecutor.OpMap, operationexecutor.OpUnmapDevice)
	}, "staged")
	w.compare(b.Mounted, w.mounted, p, func(at At) bool {
		return p.runs(at, operationexecutor.OpMount, operationexecutor.OpUnmount, operationexecutor.OpMap, operationexecutor.OpUnmap)
	}, "set up")
	pods := map[string]string{}
	for at, state := range b.Mounted {
		v := w.volumes[at.Volume]
		if state == Absent || v.Mode != "ReadWriteOncePod" || !v.shared() {
			continue
		}
		if pods[at.Volume] != "" && !w.misled[p.node] {
			w.broken("S8", "%s is for one pod, and is believed set up for two", at.Volume)
		}
		pods[at.Volume] = at.Pod
	}
}

// knows reports whether a process should know of an effect: the controller of all.
func (p *Process) knows(at At) bool { return p.node == Controller || p.node == at.Node }

// runs reports whether an operation of one of the kinds runs for at, which is not the whole volume unless it has no pod.
func (p *Process) runs(at At, kinds ...operationexecutor.OperationKind) bool {
	for r := range p.running {
		same := r.at.Volume == at.Volume && (r.at.Node == at.Node) && (at.Pod == "" || r.at.Pod == at.Pod)
		if same && slices.Contains(kinds, r.kind) {
			return true
		}
	}
	return false
}

// compare holds S2 of one kind of effect, as far as p should know it. What an operation is changing may be either.
func (w *World) compare(believed map[At]State, truth map[At]bool, p *Process, changing func(At) bool, what string) {
	for at, state := range believed {
		if state == Present && (!truth[at] || !w.isWhole(at)) && !w.foreign[at] && !changing(at) {
			w.broken("S2", "%v is believed %s and is not", at, what)
		}
	}
	for at := range truth {
		if p.knows(at) && believed[at] == Absent && !changing(at) {
			w.broken("S2", "%v is %s and believed not to be", at, what)
		}
	}
}

func (w *World) checkExclusive(attached map[At]State) {
	nodes := map[string]string{}
	for at, state := range attached {
		if state == Absent || w.volumes[at.Volume].Mode == "ReadWriteMany" {
			continue
		}
		if nodes[at.Volume] != "" {
			w.broken("S8", "%s is for one node, and is believed attached to two", at.Volume)
		}
		nodes[at.Volume] = at.Node
	}
}

// checkCalls holds S2 and S3 for calls that have not returned.
func (w *World) checkCalls(p *Process, b Belief) {
	for f := range w.pluginCalls {
		if f.process == p {
			w.checkCall(f, b)
		}
	}
}

func (w *World) checkCall(f *pluginCall, b Belief) {
	state := b.Mounted[f.at]
	switch f.name {
	case "SetUp", "MapDevice", "MapPodDevice":
		if state == Absent && !f.process.runs(f.at, operationexecutor.OpMount, operationexecutor.OpMap) {
			w.broken("S2", "%s has not returned, and it is believed not to be set up", f.label)
		}
	case "TearDown", "UnmapDevice", "UnmapPodDevice":
		if state != Uncertain && !f.process.runs(f.at, operationexecutor.OpUnmount, operationexecutor.OpUnmap) {
			w.broken("S2", "%s has not returned, and it is believed %v", f.label, state)
		}
	case "UnmountDevice", "TearDownDevice", "RemoveMapPath":
		for at := range b.Mounted {
			if at.Node == f.at.Node && at.Volume == f.at.Volume {
				w.broken("S3", "%s goes on while %v is believed %v", f.label, at, b.Mounted[at])
			}
		}
	case "Detach":
		if b.Staged[f.at] != Absent {
			w.broken("S3", "%s goes on while it is believed to be staged", f.label)
		}
	}
}

// checkReady holds S12, and notes what pods use.
func (w *World) checkReady(beliefs map[string]Belief) {
	for _, pod := range w.config.Pods {
		if !w.desired[pod.Name] || !beliefs[pod.Node].Ready[pod.Name] {
			continue
		}
		for _, v := range pod.Volumes {
			at := At{Node: pod.Node, Volume: v, Pod: pod.Name}
			if w.foreign[at] {
				continue
			}
			if !w.mounted[at] || !w.isWhole(at) {
				w.broken("S12", "%s is said to be ready, and %v is not set up, or not wholly", pod.Name, at)
			}
			if w.outlived[at] {
				w.broken("S13", "%s is said to be ready, and %v is that of the pod before", pod.Name, at)
			}
			if !w.used[at] && w.isSmall(at, w.promise[at]) {
				w.broken("S12", "%s is said to be ready, and %v is smaller than it was given", pod.Name, at)
			}
			w.used[at] = true
		}
	}
}

func sorted(set map[At]bool) []At {
	return slices.SortedFunc(maps.Keys(set), func(a, b At) int { return strings.Compare(a.String(), b.String()) })
}
