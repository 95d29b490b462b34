package operationexecutor

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/volume"
)

// intend records what is about to be done. Its error is transient: nothing was begun.
func (g *generator) intend(ctx context.Context, x *execution, intent Intent) error {
	if g.journal == nil {
		return nil
	}
	return x.port(ctx, "Intend", func(ctx context.Context) error {
		if err := g.journal.Intend(ctx, intent); err != nil {
			return volume.Transient(fmt.Errorf("nothing was begun: %w", err))
		}
		return nil
	})
}

// callContext returns the context of the call that carries an intent out.
func (g *generator) callContext(ctx context.Context, intent Intent) context.Context {
	if watcher, ok := g.journal.(CallWatcher); ok {
		return watcher.CallContext(ctx, intent)
	}
	return ctx
}

// conclude records how that ended, also when ctx has ended meanwhile. A failure is logged: the intent that stays on
// record is the truth, if less exact.
func (g *generator) conclude(ctx context.Context, x *execution, intent Intent, end IntentEnd) {
	if g.journal == nil {
		return
	}
	err := x.port(context.WithoutCancel(ctx), "Conclude", func(ctx context.Context) error { return g.journal.Conclude(ctx, intent, end) })
	if err != nil {
		g.logger.Warn("how an operation ended could not be recorded", append(logKeys(x.op.Info()), "error", err)...)
	}
}
