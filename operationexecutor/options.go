package operationexecutor

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/volumekit/volumekit/internal/backoff"
)

// The defaults of [ExecutorOptions].
const (
	// defaultTimeout bounds one call of a plugin, as kubelet bounds one call of a CSI driver.
	defaultTimeout = 2 * time.Minute
	// defaultWaitForAttachTimeout bounds the wait for a device, as kubelet does.
	defaultWaitForAttachTimeout = 10 * time.Minute
	// defaultGrace is how long a call may take to return after its context has ended.
	defaultGrace = 2 * time.Second
	// DefaultWorkersPerPlugin is how many calls of one plugin run at once.
	DefaultWorkersPerPlugin = 64
	// defaultHungPerPlugin is how many calls of one plugin may hang before no more are made.
	defaultHungPerPlugin = 1024
	// DefaultInfeasible is how long an operation waits that can never succeed as it was asked for. Kubernetes waits 12
	// hours.
	DefaultInfeasible = time.Hour
)

// ExecutorOptions says how an executor works. The zero value is useful.
type ExecutorOptions struct {
	// Observer receives every operation. [Observers] joins several; a [ContextObserver] also chooses contexts. Nil: there is none.
	Observer Observer
	// Backoff is how long an operation waits after a failure.
	Backoff Backoff
	// Timeouts bounds the calls of plugins.
	Timeouts Timeouts
	// PluginTimeouts bounds the calls of one plugin, by its name. A field that is zero there has the bound of Timeouts.
	PluginTimeouts map[string]Timeouts
	// Grace is how long a call of a plugin may take to return after its context has ended, before it is abandoned.
	// Zero means two seconds.
	Grace time.Duration
	// WorkersPerPlugin is how many calls of one plugin run at once; others wait for their turn. A call that has taken longer
	// than ten seconds counts no more: it waits for something, most likely a server that is dead, and must not keep the
	// volumes of others waiting. Zero means [DefaultWorkersPerPlugin].
	WorkersPerPlugin int
	// HungPerPlugin is how many abandoned calls of one plugin may still run before no more of its calls are made, for other
	// volumes neither. Each further call then fails with a [*PluginHungError]. Each abandoned call keeps a goroutine, and
	// most often a thread, and a program can have ten thousand threads. A hanging call keeps its volume, so as many volumes
	// must hang. At most this many calls that take longer than ten seconds give their workers to others. Zero means
	// 1,024.
	HungPerPlugin int
	// KeyFreed is called whenever the key of an operation becomes free: when the operation has ended, or later, when the
	// last call that it abandoned has really returned. It runs in a goroutine of the executor, with no lock held, after
	// Done is closed, and must return soon. It is not called for an operation that [Executor.Shutdown] has refused, because
	// no operation can begin after that. Nil calls nothing.
	KeyFreed func(o OperationInfo)
	// CallsAbandoned is called when an operation has ended although calls of it still run, once [Executor.Hung] lists them. It
	// runs in the goroutine of the operation, with no lock held, and must return soon. Nil calls nothing.
	CallsAbandoned func(o OperationInfo)
	// Logger gets what has no other way out: calls that were abandoned, and journal entries that could not be
	// concluded. Nil: it is discarded.
	Logger *slog.Logger
}

// Backoff is how long an operation that failed waits before it may start again: Initial after the first failure, Factor
// times as long after each further one, at most Max, and shorter by a random part of up to Jitter. Each pair of subject
// (volume, pod, node) and kind waits for itself. A zero field has the default.
type Backoff struct {
	// Initial is the first wait; zero means 500 milliseconds.
	Initial time.Duration
	// Max is the longest wait; zero means two minutes and two seconds.
	Max time.Duration
	// Factor is how much longer each wait is than the one before; zero means 2.
	Factor float64
	// Jitter is the greatest part of a wait that may be left out at random, between 0 and 1; zero means 0.1, less than
	// zero means none.
	Jitter float64
	// Infeasible is the shortest wait after an error that matches volume.ErrInfeasible: trying again does not help, but the
	// storage may have been given more room. Zero means [DefaultInfeasible].
	Infeasible time.Duration
}

func (b Backoff) policy() backoff.Policy {
	return backoff.Policy{Initial: b.Initial, Max: b.Max, Factor: b.Factor, Jitter: b.Jitter}
}

func (b Backoff) infeasible() time.Duration {
	if b.Infeasible <= 0 {
		return DefaultInfeasible
	}
	return b.Infeasible
}

// withDefaults fills in what was left out.
func (o ExecutorOptions) withDefaults() ExecutorOptions {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
	if o.WorkersPerPlugin <= 0 {
		o.WorkersPerPlugin = DefaultWorkersPerPlugin
	}
	if o.HungPerPlugin <= 0 {
		o.HungPerPlugin = defaultHungPerPlugin
	}
	o.PluginTimeouts = maps.Clone(o.PluginTimeouts)
	return o
}

// timeout returns the bound of a call of plugin in an operation of kind.
func (o *ExecutorOptions) timeout(plugin string, kind OperationKind) time.Duration {
	if own, ok := o.PluginTimeouts[plugin]; ok {
		if bound := own.of(kind); bound > 0 {
			return bound
		}
	}
	if bound := o.Timeouts.of(kind); bound > 0 {
		return bound
	}
	return defaultTimeout
}

// waitForAttach returns the bound of the wait for a device.
func (o *ExecutorOptions) waitForAttach(plugin string) time.Duration {
	return cmp.Or(max(o.PluginTimeouts[plugin].WaitForAttach, 0), max(o.Timeouts.WaitForAttach, 0), defaultWaitForAttachTimeout)
}

// Timeouts bounds one call of a plugin by the kind of operation that makes it. A zero field means two minutes.
type Timeouts struct {
	// Attach bounds Attach.
	Attach time.Duration
	// Detach bounds Detach.
	Detach time.Duration
	// WaitForAttach bounds the wait for a device before it is staged or mapped, unless MountOptions.WaitForAttachTimeout
	// does. Zero means ten minutes.
	WaitForAttach time.Duration
	// Mount bounds each of MountDevice and SetUp. Checking a large filesystem may take long.
	Mount time.Duration
	// Unmount bounds TearDown.
	Unmount time.Duration
	// UnmountDevice bounds UnmountDevice.
	UnmountDevice time.Duration
	// Map bounds each of SetUpDevice and MapPodDevice.
	Map time.Duration
	// Unmap bounds UnmapPodDevice.
	Unmap time.Duration
	// UnmapDevice bounds TearDownDevice.
	UnmapDevice time.Duration
	// Verify bounds VolumesAreAttached and BulkVerifyVolumes.
	Verify time.Duration
	// Expand bounds ExpandVolumeDevice.
	Expand time.Duration
	// NodeExpand bounds NodeExpand, also while the volume is mounted. Growing a large filesystem may take long.
	NodeExpand time.Duration
	// Modify bounds ModifyVolume.
	Modify time.Duration
}

// of returns the bound of a call in an operation of kind; zero when none was set.
func (t *Timeouts) of(kind OperationKind) time.Duration {
	switch kind {
	case OpAttach:
		return t.Attach
	case OpDetach:
		return t.Detach
	case OpMount:
		return t.Mount
	case OpUnmount:
		return t.Unmount
	case OpUnmountDevice:
		return t.UnmountDevice
	case OpMap:
		return t.Map
	case OpUnmap:
		return t.Unmap
	case OpUnmapDevice:
		return t.UnmapDevice
	case OpVerifyAttached, OpBulkVerifyAttached, OpListAttachments, OpVerifyControllerAttached:
		return t.Verify
	case OpExpand:
		return t.Expand
	case OpExpandInUse:
		return t.NodeExpand
	case OpModify:
		return t.Modify
	case OpReconstruct: // It asks what costs nothing, and has the default.
	}
	return 0
}

// MountOptions says how a volume is to be mounted. The zero value mounts it for the first time.
type MountOptions struct {
	// WaitForAttachTimeout bounds the wait for the device. Zero means Timeouts.WaitForAttach of the executor.
	WaitForAttachTimeout time.Duration
	// IsRemount says that the volume is mounted and is only to be refreshed. It has no effect while the volume is not
	// known to be mounted.
	IsRemount bool
}

// DetachOptions says how a volume is to be detached.
type DetachOptions struct {
	// VerifySafeToDetach asks the [NodeReader] first and refuses, with an error that matches volume.ErrInUse, while the
	// node says that it uses the volume.
	VerifySafeToDetach bool
	// Confirm, if not nil, is asked when the node has been told and right before the plugin is called; its error refuses the detach.
	Confirm func(ctx context.Context) error
}
