package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
)

// conflictPause is how long a writer waits that has lost against another one, before it reads again.
const conflictPause = 5 * time.Millisecond

var (
	_ operationexecutor.AttachmentReporter = (*reporter)(nil)
	_ operationexecutor.NodeReader         = store.NodeStatus{}
)

// annConfirmed is the annotation of a node that the controller changes when the node's list of attached volumes is right already,
// and an earlier write of it may still take effect: the store refuses that write then, since the node has changed.
const annConfirmed = "volumekit.io/attachments-confirmed"

// reporter writes into the status of nodes what is attached to them, one write at a time for each node. Its methods may be called from
// several goroutines at once.
type reporter struct {
	store  store.Store
	actual *cluster.ActualStateOfWorld
	logger *slog.Logger
	delay  func(failures int) time.Duration
	// dirty are the nodes whose status is to be written.
	dirty *workqueue.Queue[types.NodeName]

	mu       sync.Mutex             // no call that waits is made under it
	failures map[types.NodeName]int // in a row
	writing  map[types.NodeName]*statusWrite
	// certain are the nodes of which every write of this process is known to have ended.
	certain map[types.NodeName]struct{}
}

// statusWrite is a write of one node's status that is under way.
type statusWrite struct {
	ended chan struct{}
	again bool // the node is to be looked at once more
}

func newReporter(s store.Store, options Options) *reporter {
	return &reporter{
		store: s, logger: options.Logger, delay: options.delay, dirty: workqueue.New[types.NodeName](), failures: map[types.NodeName]int{},
		writing: map[types.NodeName]*statusWrite{}, certain: map[types.NodeName]struct{}{},
	}
}

// ReportAttached implements operationexecutor.AttachmentReporter. For a node that is gone it does nothing, which is no error.
//
// Two writers of one node could undo each other: one that finds nothing to write, before the write of the other takes effect, would
// take for written what the other overwrites.
func (r *reporter) ReportAttached(ctx context.Context, name types.NodeName) error {
	for {
		other := r.begin(name)
		if other == nil {
			break
		}
		select {
		case <-other.ended:
		case <-ctx.Done():
			return fmt.Errorf("node %q: an earlier write of its status has not ended: %w", name, context.Cause(ctx))
		}
	}
	defer r.end(name)
	return r.write(ctx, name)
}

// begin takes the right to write the status of a node, or returns the write that is under way.
func (r *reporter) begin(name types.NodeName) *statusWrite {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.writing[name]; other != nil {
		return other
	}
	r.writing[name] = &statusWrite{ended: make(chan struct{})}
	return nil
}

// end gives the right back.
func (r *reporter) end(name types.NodeName) {
	r.mu.Lock()
	w := r.writing[name]
	delete(r.writing, name)
	again := w.again
	r.mu.Unlock()
	close(w.ended)
	if again {
		r.dirty.Add(name)
	}
}

// tryBegin is begin for a caller that does not wait. If a write is running, the node becomes dirty again at its end.
func (r *reporter) tryBegin(name types.NodeName) (begun bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.writing[name]; other != nil {
		other.again = true
		return false
	}
	r.writing[name] = &statusWrite{ended: make(chan struct{})}
	return true
}

// write makes the status of a node what the actual state says.
func (r *reporter) write(ctx context.Context, name types.NodeName) error {
	for {
		node, err := store.Get[*v1.Node](ctx, r.store, "", string(name))
		if errors.Is(err, store.ErrNotFound) {
			r.markUncertain(name)
			return nil
		}
		if err != nil {
			return err
		}
		// The report is made after the node was read: a writer of an older one meanwhile has made this write fail.
		report, there := r.actual.Report(name)
		if !there || report.NodeUID != node.UID {
			return nil
		}
		err = r.update(ctx, node, report.Attached)
		if errors.Is(err, store.ErrConflict) {
			pause(ctx, conflictPause)
			continue
		}
		if err != nil {
			return err
		}
		r.actual.ReportWritten(report)
		return nil
	}
}

// update writes the list of attached volumes into a node that was read. A list that is right already is not written, unless an
// earlier write may still take effect.
func (r *reporter) update(ctx context.Context, node *v1.Node, attached []v1.AttachedVolume) error {
	name := types.NodeName(node.Name)
	if slices.Equal(node.Status.VolumesAttached, attached) {
		if r.isCertain(name) {
			return nil
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, annConfirmed, node.ResourceVersion)
	}
	node.Status.VolumesAttached = attached
	r.markUncertain(name)
	_, err := store.Update(ctx, r.store, node)
	if err == nil {
		r.markCertain(name) // An earlier write was of an older version of the node.
	}
	return err
}

func (r *reporter) isCertain(name types.NodeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.certain[name]
	return is
}

func (r *reporter) markCertain(name types.NodeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.certain[name] = struct{}{}
}

func (r *reporter) markUncertain(name types.NodeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.certain, name)
}

// reporters is how many node statuses are written at once. Each write waits for the store.
const reporters = 8

// run writes the status of nodes whenever what is attached to them changes, until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for {
		name, ok := r.dirty.Get(ctx)
		if !ok {
			return
		}
		if !r.tryBegin(name) {
			continue
		}
		err := r.write(ctx, name)
		r.end(name)
		failures := r.count(name, err)
		if err != nil {
			r.logger.Warn("the status of a node does not list its attached volumes yet", "node", name, "error", err)
			r.dirty.AddAt(name, time.Now().Add(r.delay(failures)))
		}
	}
}

// count returns how often in a row the status of a node could not be written.
func (r *reporter) count(name types.NodeName, err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failures, name)
		return 0
	}
	r.failures[name]++
	return r.failures[name]
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
