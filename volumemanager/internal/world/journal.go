package world

import (
	"cmp"
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// Record is what the journal of a node says of one volume.
type Record struct {
	// Name is the unique name of the volume.
	Name v1.UniqueVolumeName
	// Spec is the volume.
	Spec *volume.Spec
	// Node is the node of an attachment that the controller made; empty on a node.
	Node string
	// Attached says that it may be attached.
	Attached bool
	// Staged is the path at which it may be staged.
	Staged string
	// Pods are those for which it may be set up.
	Pods map[types.UID]bool
}

// journals are the journals of the nodes, which survive crashes.
type journals struct {
	records map[string]map[recordKey]*Record
	// stale says that the records of a node may say more than is true since its last start, as a write failed.
	stale map[string]bool
	// misled says that the program of a node found such records when it started.
	misled map[string]bool
}

func (r *Record) isEmpty() bool { return !r.Attached && r.Staged == "" && len(r.Pods) == 0 }

// Intend implements operationexecutor.Journal.
func (p *Process) Intend(_ context.Context, intent operationexecutor.Intent) error {
	return p.record("Intend", intent, func(r *Record) { r.add(intent) })
}

// Conclude implements operationexecutor.Journal.
func (p *Process) Conclude(_ context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	return p.record("Conclude", intent, func(r *Record) {
		if end == operationexecutor.IntentForgotten {
			r.drop(intent)
			return
		}
		r.add(intent)
	})
}

// record changes the record of a volume.
func (p *Process) record(name string, intent operationexecutor.Intent, f func(*Record)) error {
	at := At{Node: cmp.Or(string(intent.NodeName), p.node), Volume: p.world.inner[intent.VolumeName], Pod: string(intent.PodUID)}
	verdict := OK
	if !p.world.config.Faults.Quiet {
		verdict = p.park(name, name+":"+at.String())
	}
	if verdict == killed || p.isDead() {
		return errKilled
	}
	p.world.change(func() {
		if verdict != Final {
			p.world.write(p.node, intent, f)
		}
		if verdict == failWritten || name == "Conclude" && verdict == Final {
			p.world.stale[p.node] = true
		}
	})
	if verdict != OK {
		return fmt.Errorf("no space left for the record of %v: %w", at, errSimulated)
	}
	return nil
}

// WriteRecord is for a program that keeps its records itself: it waits until it may write one of them, and enters what is on
// record of the volume when that is done. write does it, and calls nothing of the world. A process that was killed writes
// nothing.
func (p *Process) WriteRecord(name v1.UniqueVolumeName, write func() Record) error {
	w, at := p.world, At{Node: p.node, Volume: p.world.inner[name], Pod: p.world.owners[name]}
	verdict := OK
	if !w.config.Faults.Quiet {
		verdict = p.park("Record", "Record:"+at.String())
	}
	if verdict == killed || p.isDead() {
		return errKilled
	}
	w.change(func() {
		if verdict != Final {
			w.enter(p.node, name, write())
		}
		w.stale[p.node] = w.stale[p.node] || verdict != OK
	})
	if verdict != OK {
		return fmt.Errorf("no space left for the record of %v: %w", at, errSimulated)
	}
	return nil
}

// KeepRecords is for a program that keeps its records itself: it says what is on record when the program starts, in a new
// process or in this one.
func (p *Process) KeepRecords(records map[v1.UniqueVolumeName]Record) {
	p.world.change(func() {
		p.world.findRecords(p.node)
		clear(p.world.records[p.node])
		for name, r := range records {
			p.world.enter(p.node, name, r)
		}
	})
}

// findRecords notes that the program of a node finds records that may say more than is true. The lock is held.
func (j *journals) findRecords(node string) {
	j.misled[node], j.stale[node] = j.misled[node] || j.stale[node], false
}

// enter makes r the record of a volume. The lock is held.
func (j *journals) enter(node string, name v1.UniqueVolumeName, r Record) {
	key := recordKey{name: name}
	if r.isEmpty() {
		delete(j.records[node], key)
		return
	}
	r.Name = name
	j.records[node][key] = &r
}

// write changes a record. The lock is held.
func (j *journals) write(node string, intent operationexecutor.Intent, f func(*Record)) {
	records := j.records[node]
	key := recordKey{name: intent.VolumeName}
	if node == Controller {
		key.node = string(intent.NodeName)
	}
	r := records[key]
	if r == nil {
		r = &Record{Name: intent.VolumeName, Node: key.node, Spec: intent.Spec, Pods: map[types.UID]bool{}}
		records[key] = r
	}
	f(r)
	if r.isEmpty() {
		delete(records, key)
	}
}

// recordKey is what a record is kept by: the volume, and by the controller the node of the attachment too.
type recordKey struct {
	name v1.UniqueVolumeName
	node string
}

func (k recordKey) compare(other recordKey) int {
	return cmp.Or(cmp.Compare(k.name, other.name), cmp.Compare(k.node, other.node))
}

// recordOf returns what is on record of an effect, or nil: of an attachment with the one who makes it. The lock is held.
func (w *World) recordOf(at At, attachment bool) *Record { //nolint:revive // An attachment is recorded elsewhere.
	key := recordKey{name: uniqueName(w.volumes[at.Volume], at.Pod)}
	if attachment && w.config.WithController {
		key.node = at.Node
		return w.records[Controller][key]
	}
	return w.records[at.Node][key]
}

func (r *Record) add(intent operationexecutor.Intent) {
	switch {
	case isAttachment(intent):
		r.Attached = true
	case intent.PodUID != "":
		r.Pods[intent.PodUID] = true
	default:
		r.Staged = intent.DeviceMountPath
	}
}

func (r *Record) drop(intent operationexecutor.Intent) {
	switch {
	case isAttachment(intent):
		r.Attached = false
	case intent.PodUID != "":
		delete(r.Pods, intent.PodUID)
	default:
		r.Staged = ""
	}
}

func isAttachment(intent operationexecutor.Intent) bool {
	return intent.Kind == operationexecutor.OpAttach || intent.Kind == operationexecutor.OpDetach
}
