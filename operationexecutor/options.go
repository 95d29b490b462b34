package operationexecutor

import (
	"log/slog"
	"time"
)

// The defaults of [ExecutorOptions].
const (
	// DefaultTimeout bounds one call of a plugin, as kubelet bounds one call of a CSI driver.
	DefaultTimeout = 2 * time.Minute
	// DefaultWaitForAttachTimeout bounds the wait for a device, as kubelet does.
	DefaultWaitForAttachTimeout = 10 * time.Minute
	// DefaultGrace is how long a call may take to return after its context has ended.
	DefaultGrace = 2 * time.Second
	// DefaultWorkersPerPlugin is how many calls of one plugin run at once.
	DefaultWorkersPerPlugin = 64
)

// ExecutorOptions says how an executor works. The zero value is useful.
type ExecutorOptions struct {
	// Observer is told of every operation. Nil: nobody is.
	Observer Observer
	// Backoff is how long an operation waits after a failure.
	Backoff Backoff
	// Timeouts bounds the calls of plugins.
	Timeouts Timeouts
	// Grace is how long a call of a plugin may take to return after its context has ended, before it is left behind.
	// Zero means [DefaultGrace].
	Grace time.Duration
	// WorkersPerPlugin is how many calls of one plugin run at once; others wait for their turn. Calls that were left
	// behind do not count. Zero means [DefaultWorkersPerPlugin].
	WorkersPerPlugin int
	// KeyFreed is called whenever the key of an operation becomes free: when the operation has ended, or later, when
	// the last call that it left behind has really returned. It runs in a goroutine of the executor, with no lock held,
	// after Done is closed, and must return soon. Nil: nobody is told.
	KeyFreed func(o OperationInfo)
	// Logger gets what has no other way out: calls that were left behind, and journal entries that could not be
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
}

// Timeouts bounds one call of a plugin by the kind of operation that makes it. A zero field means [DefaultTimeout].
type Timeouts struct {
	// Attach bounds Attach.
	Attach time.Duration
	// Detach bounds Detach.
	Detach time.Duration
	// Mount bounds each of MountDevice and SetUp. Checking a large filesystem may take long. The wait for the device
	// between them is bounded by MountOptions.WaitForAttachTimeout.
	Mount time.Duration
	// Unmount bounds TearDown.
	Unmount time.Duration
	// UnmountDevice bounds UnmountDevice.
	UnmountDevice time.Duration
	// Verify bounds VolumesAreAttached and BulkVerifyVolumes.
	Verify time.Duration
	// Expand bounds ExpandVolumeDevice.
	Expand time.Duration
	// NodeExpand bounds NodeExpand, also while the volume is mounted. Growing a large filesystem may take long.
	NodeExpand time.Duration
}

// of returns the bound of a call in an operation of kind.
func (t Timeouts) of(kind OperationKind) time.Duration {
	bound := map[OperationKind]time.Duration{
		OpAttach: t.Attach, OpDetach: t.Detach, OpMount: t.Mount, OpUnmount: t.Unmount, OpUnmountDevice: t.UnmountDevice,
		OpVerifyAttached: t.Verify, OpBulkVerifyAttached: t.Verify, OpExpand: t.Expand, OpExpandInUse: t.NodeExpand,
	}[kind]
	if bound <= 0 {
		return DefaultTimeout
	}
	return bound
}

// MountOptions says how a volume is to be mounted. The zero value mounts it for the first time.
type MountOptions struct {
	// WaitForAttachTimeout bounds the wait for the device. Zero means [DefaultWaitForAttachTimeout].
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
}
