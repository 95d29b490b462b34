package world

import (
	"maps"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/operationexecutor"
)

// Check implements simulation.World: it holds the rules of safety.
func (w *World) Check() error {
	s := safety{World: w, beliefs: w.beliefs()}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.checkOrder()
	s.checkRecords()
	for _, node := range w.nodes {
		s.checkBelief(w.processes[node])
		s.checkCalls(w.processes[node])
	}
	s.checkReady()
	return w.fault()
}

// safety checks the rules of safety at one moment. The lock is held.
type safety struct {
	*World
	// beliefs is what the programs believe at that moment, by node.
	beliefs map[string]Belief
}

func (w *World) beliefs() map[string]Belief {
	beliefs := make(map[string]Belief, len(w.nodes))
	for _, node := range w.nodes {
		beliefs[node] = w.engines[node].Belief()
	}
	return beliefs
}

// checkOrder holds S3 and S8 of the truth.
func (s safety) checkOrder() {
	for at := range s.mounted {
		whole := At{Node: at.Node, Volume: at.Volume}
		if s.volumes[at.Volume].Stageable && !s.staged[whole] && !s.foreign[whole] {
			s.broken("S3", "%v is set up and not staged", at)
		}
	}
	for at := range s.staged {
		if s.volumes[at.Volume].Attachable && !s.attached[at] {
			s.broken("S3", "%v is staged and not attached", at)
		}
	}
}

// checkRecords holds S4 for what is there.
func (s safety) checkRecords() {
	for at := range s.mounted {
		if r := s.recordOf(at, false); r == nil || !r.Pods[s.pods[at.Pod].UID] {
			s.broken("S4", "%v is set up and not on record", at)
		}
	}
	for at := range s.staged {
		if r := s.recordOf(at, false); r == nil || r.Staged == "" {
			s.broken("S4", "%v is staged and not on record", at)
		}
	}
	for at := range s.attached {
		if r := s.recordOf(at, true); r == nil || !r.Attached {
			s.broken("S4", "%v is attached and not on record", at)
		}
	}
}

// checkBelief holds S2, and S8 of what is believed.
func (s safety) checkBelief(p *Process) {
	b := s.beliefs[p.node]
	if p.node == Controller || !s.config.WithController {
		s.compare(b.Attached, s.attached, p, func(at At) bool {
			return p.operations.runs(at, operationexecutor.OpAttach, operationexecutor.OpDetach)
		}, "attached")
	}
	if p.node == Controller {
		if !s.misled[Controller] {
			s.checkExclusive(b.Attached)
		}
		return
	}
	s.compare(b.Staged, s.staged, p, func(at At) bool {
		return p.operations.runs(at, operationexecutor.OpMount, operationexecutor.OpUnmountDevice, operationexecutor.OpMap, operationexecutor.OpUnmapDevice)
	}, "staged")
	s.compare(b.Mounted, s.mounted, p, func(at At) bool {
		return p.operations.runs(at, operationexecutor.OpMount, operationexecutor.OpUnmount, operationexecutor.OpMap, operationexecutor.OpUnmap)
	}, "set up")
	pods := map[string]string{}
	for at, state := range b.Mounted {
		v := s.volumes[at.Volume]
		if state == Absent || v.Mode != "ReadWriteOncePod" || !v.shared() {
			continue
		}
		if pods[at.Volume] != "" && !s.misled[p.node] {
			s.broken("S8", "%s is for one pod, and is believed set up for two", at.Volume)
		}
		pods[at.Volume] = at.Pod
	}
}

// knows reports whether a process should know of an effect: the controller of all.
func (p *Process) knows(at At) bool { return p.node == Controller || p.node == at.Node }

// compare holds S2 of one kind of effect, as far as p should know it. What an operation is changing may be either.
func (s safety) compare(believed map[At]State, truth map[At]bool, p *Process, changing func(At) bool, what string) {
	for at, state := range believed {
		if state == Present && (!truth[at] || !s.isWhole(at)) && !s.foreign[at] && !changing(at) {
			s.broken("S2", "%v is believed %s and is not", at, what)
		}
	}
	for at := range truth {
		if p.knows(at) && believed[at] == Absent && !changing(at) {
			s.broken("S2", "%v is %s and believed not to be", at, what)
		}
	}
}

func (s safety) checkExclusive(attached map[At]State) {
	nodes := map[string]string{}
	for at, state := range attached {
		if state == Absent || s.volumes[at.Volume].Mode == "ReadWriteMany" {
			continue
		}
		if nodes[at.Volume] != "" {
			s.broken("S8", "%s is for one node, and is believed attached to two", at.Volume)
		}
		nodes[at.Volume] = at.Node
	}
}

// checkCalls holds S2 and S3 for calls that have not returned.
func (s safety) checkCalls(p *Process) {
	for f := range s.pluginCalls {
		if f.process == p {
			s.checkCall(f, s.beliefs[p.node])
		}
	}
}

func (s safety) checkCall(f *pluginCall, b Belief) {
	state := b.Mounted[f.at]
	switch f.name {
	case "SetUp", "MapDevice", "MapPodDevice":
		if state == Absent && !f.process.operations.runs(f.at, operationexecutor.OpMount, operationexecutor.OpMap) {
			s.broken("S2", "%s has not returned, and it is believed not to be set up", f.label)
		}
	case "TearDown", "UnmapDevice", "UnmapPodDevice":
		if state != Uncertain && !f.process.operations.runs(f.at, operationexecutor.OpUnmount, operationexecutor.OpUnmap) {
			s.broken("S2", "%s has not returned, and it is believed %v", f.label, state)
		}
	case "UnmountDevice", "TearDownDevice", "RemoveMapPath":
		for at := range b.Mounted {
			if at.Node == f.at.Node && at.Volume == f.at.Volume {
				s.broken("S3", "%s goes on while %v is believed %v", f.label, at, b.Mounted[at])
			}
		}
	case "Detach":
		if b.Staged[f.at] != Absent {
			s.broken("S3", "%s goes on while it is believed to be staged", f.label)
		}
	}
}

// checkReady holds S12, and notes what pods use.
func (s safety) checkReady() {
	for _, pod := range s.config.Pods {
		if !s.desired[pod.Name] || !s.beliefs[pod.Node].Ready[pod.Name] {
			continue
		}
		for _, v := range pod.Volumes {
			at := At{Node: pod.Node, Volume: s.storageFor(pod.Name, v), Pod: pod.Name}
			if s.foreign[at] {
				continue
			}
			if !s.mounted[at] || !s.isWhole(at) {
				s.broken("S12", "%s is said to be ready, and %v is not set up, or not wholly", pod.Name, at)
			}
			if s.outlived[at] {
				s.broken("S13", "%s is said to be ready, and %v is that of the pod before", pod.Name, at)
			}
			if !s.used[at] && s.isTooSmall(at, s.promised[at]) {
				s.broken("S12", "%s is said to be ready, and %v is smaller than was requested", pod.Name, at)
			}
			s.used[at] = true
		}
	}
}

func sorted(set map[At]bool) []At {
	return slices.SortedFunc(maps.Keys(set), func(a, b At) int { return strings.Compare(a.String(), b.String()) })
}
