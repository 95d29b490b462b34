package attachdetach

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
)

// conflictPause is how long a writer waits that has lost against another one, before it reads again.
const conflictPause = 5 * time.Millisecond

var (
	_ operationexecutor.AttachmentReporter = reporter{}
	_ operationexecutor.NodeReader         = store.NodeStatus{}
)

// reporter writes into the status of nodes what is attached to them.
type reporter struct{ *Controller }

// ReportAttached implements operationexecutor.AttachmentReporter. A node that is gone is told nothing, which is no error.
func (r reporter) ReportAttached(ctx context.Context, name types.NodeName) error {
	for {
		node, err := store.Get[*v1.Node](ctx, r.store, "", string(name))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		// The report is made after the node was read: who writes an older one meanwhile has made this write fail.
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

// reporters is how many nodes are told at once. Each of them waits for the store.
const reporters = 8

// reportAll tells nodes what is attached to them whenever that changes, until ctx ends. Several may tell one node at the same
// time: who was slower finds that the node has changed, and reads again.
func (c *Controller) reportAll(ctx context.Context) {
	for {
		name, ok := c.dirtyNodes.Get(ctx)
		if !ok {
			return
		}
		if err := (reporter{c}).ReportAttached(ctx, name); err != nil {
			c.options.Logger.Warn("a node was not told what is attached to it", "node", name, "err", err)
			c.dirtyNodes.AddAt(name, time.Now().Add(c.options.delay(c.untoldAgain(name))))
			continue
		}
		c.told(name)
	}
}

// untoldAgain returns how often in a row a node could not be told.
func (c *Controller) untoldAgain(name types.NodeName) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untold[name]++
	return c.untold[name]
}

func (c *Controller) told(name types.NodeName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.untold, name)
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
