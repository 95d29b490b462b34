package attachdetach

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
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

// reporter writes into the status of nodes what is attached to them. Its methods may be called from several goroutines at once.
type reporter struct {
	store  store.Store
	actual *cache.ClusterActualStateOfWorld
	logger *slog.Logger
	delay  func(failures int) time.Duration
	// dirty are the nodes whose status is to be written.
	dirty *workqueue.Queue[types.NodeName]

	mu       sync.Mutex
	failures map[types.NodeName]int // in a row
}

func newReporter(s store.Store, options Options) *reporter {
	return &reporter{
		store: s, logger: options.Logger, delay: options.delay, dirty: workqueue.New[types.NodeName](), failures: map[types.NodeName]int{},
	}
}

// ReportAttached implements operationexecutor.AttachmentReporter. For a node that is gone it does nothing, which is no error.
func (r *reporter) ReportAttached(ctx context.Context, name types.NodeName) error {
	for {
		node, err := store.Get[*v1.Node](ctx, r.store, "", string(name))
		if errors.Is(err, store.ErrNotFound) {
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
		if !slices.Equal(node.Status.VolumesAttached, report.Attached) {
			node.Status.VolumesAttached = report.Attached
			_, err = store.Update(ctx, r.store, node)
		}
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

// reporters is how many node statuses are written at once. Each write waits for the store.
const reporters = 8

// run writes the status of nodes whenever what is attached to them changes, until ctx ends. Several may write that of one node at the
// same time: the slower one finds that the node has changed, and reads again.
func (r *reporter) run(ctx context.Context) {
	for {
		name, ok := r.dirty.Get(ctx)
		if !ok {
			return
		}
		err := r.ReportAttached(ctx, name)
		failures := r.count(name, err)
		if err != nil {
			r.logger.Warn("a node was not told what is attached to it", "node", name, "err", err)
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
