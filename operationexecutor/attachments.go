package operationexecutor

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/keyed"
)

// This file tells a verification which of its answers are too old.

// attachments counts the attach and detach operations that begin on what is being verified. It holds nothing else. The
// zero value is ready to use.
type attachments struct {
	mu      sync.Mutex
	watched map[attachmentKey]*watchedAttachment
}

type attachmentKey struct {
	volume v1.UniqueVolumeName
	node   types.NodeName
}

type watchedAttachment struct {
	watchers int
	begun    uint64
}

// begin counts an operation, after it has its key and before it does anything.
func (a *attachments) begin(lock *keyed.Lock) {
	if kind := OperationKind(lock.Operation.Kind); kind != OpAttach && kind != OpDetach {
		return
	}
	key := attachmentKey{v1.UniqueVolumeName(lock.Operation.Key.Volume), types.NodeName(lock.Operation.Key.Node)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.watched[key]; w != nil {
		w.begun++
	}
}

// attachmentWatch knows how many operations had begun on each attachment when the watch did.
type attachmentWatch struct {
	of    *attachments
	begun map[attachmentKey]uint64
}

// watch begins to count for the attachments of volumes. End it.
func (a *attachments) watch(volumes map[types.NodeName][]AttachedVolume) *attachmentWatch {
	watch := &attachmentWatch{of: a, begun: map[attachmentKey]uint64{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watched == nil {
		a.watched = map[attachmentKey]*watchedAttachment{}
	}
	for nodeName, ofNode := range volumes {
		for _, at := range ofNode {
			watch.add(attachmentKey{at.VolumeName, nodeName})
		}
	}
	return watch
}

func (w *attachmentWatch) add(key attachmentKey) {
	if _, twice := w.begun[key]; twice {
		return
	}
	watched := w.of.watched[key]
	if watched == nil {
		watched = &watchedAttachment{}
		w.of.watched[key] = watched
	}
	watched.watchers++
	w.begun[key] = watched.begun
}

// stale reports whether an operation began on the attachment since the watch did.
func (w *attachmentWatch) stale(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	key := attachmentKey{volumeName, nodeName}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	return w.of.watched[key].begun != w.begun[key]
}

// end forgets what no other operation watches.
func (w *attachmentWatch) end() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	for key := range w.begun {
		watched := w.of.watched[key]
		if watched.watchers--; watched.watchers == 0 {
			delete(w.of.watched, key)
		}
	}
}

// hold calls f while no operation holds a key that meets key, and lets none begin meanwhile; it does nothing when one does.
// No lock is held while f runs. by is the operation that asks for it.
func (e *Executor) hold(key Key, by OperationInfo, f func()) {
	by.VolumeName, by.NodeName = key.Volume, key.Node
	lock := &keyed.Lock{Operation: operationOf(&by), AllNodes: key.Node == "", AllPods: true}
	if refusal := e.table.Begin(lock); refusal != nil {
		return
	}
	defer e.keyFreed(by)
	defer e.table.End(lock)
	f()
}
