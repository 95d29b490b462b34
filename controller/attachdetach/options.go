package attachdetach

import (
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// The defaults of Options are those of Kubernetes.
const (
	defaultMaxWaitForUnmount = 6 * time.Minute
	defaultVerifyPeriod      = time.Minute
)

// Options are the options of a [Controller]. The zero value is useful.
type Options struct {
	// MaxWaitForUnmount limits how long an unready node keeps a volume that no pod there wants. If the node says for this
	// long, without a break, that it is not ready and uses the volume, the volume is detached by force. Zero means six
	// minutes; a negative value means never. No time limit applies to a node whose object is missing or has no Ready
	// condition.
	MaxWaitForUnmount time.Duration
	// VerifyPeriod is the time between checks with the plugins whether volumes are still attached. If a plugin can list
	// attachments (volume.AttachmentLister), each check, and one at the start, also finds attachments without a record.
	// Zero means a minute; a negative value means never.
	VerifyPeriod time.Duration
	// ManagesNode reports whether this controller attaches the volumes of a node. Nil means all nodes. It is called again
	// after each change of the node, and must return at once.
	ManagesNode func(node *v1.Node) bool
	// Recorder gets the events of pods, volumes and nodes. Nil drops them.
	Recorder volume.EventRecorder
	// Observer gets a report of every operation; nil drops it.
	Observer operationexecutor.Observer
	// Logger gets what happens outside of operations. Nil discards it.
	Logger *slog.Logger
	// Backoff is the wait before a failed operation is tried again. The zero value is that of Kubernetes.
	Backoff operationexecutor.Backoff
	// Timeouts bounds operations, PluginTimeouts those of one plugin, by its name. Zero fields have the executor's defaults.
	Timeouts       operationexecutor.Timeouts
	PluginTimeouts map[string]operationexecutor.Timeouts
	// WorkersPerPlugin is how many operations of one plugin run at once. HungPerPlugin is how many calls of a plugin may
	// hang before the executor makes no more. Zero means the executor's defaults.
	WorkersPerPlugin, HungPerPlugin int
}

func (o Options) withDefaults() Options {
	if o.MaxWaitForUnmount == 0 {
		o.MaxWaitForUnmount = defaultMaxWaitForUnmount
	}
	if o.VerifyPeriod == 0 {
		o.VerifyPeriod = defaultVerifyPeriod
	}
	if o.ManagesNode == nil {
		o.ManagesNode = func(*v1.Node) bool { return true }
	}
	if o.Recorder == nil {
		o.Recorder = noEvents{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// delay returns the wait after this many failures in a row, for work that is not an operation.
func (o Options) delay(failures int) time.Duration {
	b := o.Backoff
	return backoff.Policy{Initial: b.Initial, Max: b.Max, Factor: b.Factor, Jitter: b.Jitter}.Delay(failures)
}

// untilVerified returns the wait until the next check of the plugins. A random part makes controllers check at different
// times.
func (o Options) untilVerified() time.Duration {
	return backoff.Policy{Initial: o.VerifyPeriod, Max: o.VerifyPeriod, Jitter: o.Backoff.Jitter}.Delay(1)
}
