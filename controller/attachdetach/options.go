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
	// MaxWaitForUnmount is how long a node may say without a break that it is not ready and that it uses a volume which no pod
	// wants there, before the volume is taken from it by force. Zero means six minutes; less than zero means for
	// ever. A node whose object is missing, or has no condition of the type Ready, loses nothing by time.
	MaxWaitForUnmount time.Duration
	// VerifyPeriod is how often plugins are asked whether volumes still are attached, and, where they can list that
	// (volume.AttachmentLister), at the start and each time, what is attached that is on no record; zero means a minute, less
	// than zero never.
	VerifyPeriod time.Duration
	// ManagesNode says whether the volumes of a node are attached by this controller; nil: those of every node. It is asked
	// again whenever the node changes, and must return at once.
	ManagesNode func(node *v1.Node) bool
	// Recorder gets the events of pods, volumes and nodes. Nil: they are dropped.
	Recorder volume.EventRecorder
	// Observer gets a report of every operation; nil drops it.
	Observer operationexecutor.Observer
	// Logger gets what happens beside operations. Nil: it is discarded.
	Logger *slog.Logger
	// Backoff is how long an operation that failed waits before it is tried again. The zero value is that of Kubernetes.
	Backoff operationexecutor.Backoff
	// Timeouts bounds operations, PluginTimeouts those of one plugin, by its name. Zero fields have the executor's defaults.
	Timeouts       operationexecutor.Timeouts
	PluginTimeouts map[string]operationexecutor.Timeouts
	// WorkersPerPlugin is how many operations of one plugin run at once, HungPerPlugin how many of its calls may hang before
	// no more of them are made. Zero means the executor's defaults.
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

// delay returns how long to wait after so many failures in a row of what is no operation.
func (o Options) delay(failures int) time.Duration {
	b := o.Backoff
	return backoff.Policy{Initial: b.Initial, Max: b.Max, Factor: b.Factor, Jitter: b.Jitter}.Delay(failures)
}

// untilVerified returns how long to wait before plugins are asked again, a random part left out: controllers do not ask at the
// same time.
func (o Options) untilVerified() time.Duration {
	return backoff.Policy{Initial: o.VerifyPeriod, Max: o.VerifyPeriod, Jitter: o.Backoff.Jitter}.Delay(1)
}
