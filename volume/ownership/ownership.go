package ownership

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/internal/outcome"
)

// The sentinels of this package. Match them with errors.Is.
var (
	// ErrInvalid says that a group or a policy is none, or that the root is a symbolic link.
	ErrInvalid = errors.New("invalid")
	// ErrNotKept says that the filesystem accepted a change and did not keep it. It may be one that knows no owners, or
	// this process lacks CAP_FSETID, without which the kernel drops setgid silently.
	ErrNotKept = errors.New("the filesystem did not keep what it was told: look for an option of its mount that sets the group," +
		" or run with CAP_FSETID")
	// ErrUncertain matches the error of work that was abandoned and may still go on.
	ErrUncertain = outcome.ErrUncertain
	// ErrTransient matches the error of a call that did not begin because its context had ended.
	ErrTransient = outcome.ErrTransient
)

// Options say what is asked for. The zero value asks for nothing.
type Options struct {
	// Group is the group that must be able to use the content. Nil leaves everything as it is.
	Group *int64
	// Policy says when the whole tree is looked at; nil means always. With OnRootMismatch it is not when the root is a
	// directory that has the group and the mode already.
	Policy *v1.PodFSGroupChangePolicy
	// ReadOnly adds only what is needed for reading. It is for a volume that the pod gets read-only and whose filesystem
	// can still be written to.
	ReadOnly bool

	// Progress, if it is not nil, is called when the work takes long: after 30 seconds, and then each minute. The goroutine that
	// has called Apply calls it, and does not look at its context meanwhile.
	Progress func(Progress)
	// Events is told whenever Progress is, about Pod. Either may be nil; then there are no events.
	Events eventRecorder
	// Pod is the pod for which it is done.
	Pod *v1.Pod

	// Workers is how many goroutines share the work. 0 means the number of processors, at least 4 and at most 16.
	Workers int
	// MaxFailures is how many failures are kept beside the first of each errno. 0 means 16. All are counted.
	MaxFailures int
	// without holds system calls that are not to be used, for tests of the fall-backs.
	without feature
}

// feature is a set of system calls that a kernel or a seccomp filter may lack. Apply finds out by itself what is missing.
type feature uint8

const (
	// featureFchmodat2 is fchmodat2(2), Linux 6.6. The fall-back is chmod(2) of the descriptor's name in /proc/self/fd.
	featureFchmodat2 feature = 1 << iota
	// featureOpenat2 is openat2(2), Linux 5.6. The fall-back opens one path element after the other.
	featureOpenat2
	// featureMountRoot is STATX_ATTR_MOUNT_ROOT, Linux 5.8. The fall-back compares mount ids in /proc/self/fdinfo.
	featureMountRoot

	// allFeatures is the set of all of them.
	allFeatures feature = 1<<iota - 1
)

// eventRecorder tells users what happened to a pod. A volume.EventRecorder is one. It must return at once.
type eventRecorder interface {
	// Eventf records an event. eventtype is v1.EventTypeWarning, reason is [eventReason].
	Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any)
}

// eventReason is the reason of the events, as Kubernetes has it.
const eventReason = "VolumePermissionChangeInProgress"

// Progress is how far it has come.
type Progress struct {
	// Dir is the root, as it was given.
	Dir string
	// Elapsed is how long it has taken.
	Elapsed time.Duration
	// Counts is what was done until now.
	Counts
}

// Apply gives the tree at dir, an absolute path, to the group that the options name. dir itself must not be a symbolic
// link; a file is a tree of one. The report is valid beside an error, too.
//
// The error is nil when everything is as was asked for. Otherwise it matches [ErrInvalid] or [ErrTransient], and nothing was
// touched; or the error of ctx, and [ErrUncertain] too when the work was abandoned; or the errno of each kind of failure,
// in a [*FailedError] when it is about what is in the tree. What was not done is done by another call.
//
// Calls about different trees may be made at once. So may those about the same tree, but two groups then have no order.
func Apply(ctx context.Context, dir string, options Options) (Report, error) {
	if err := options.check(); err != nil {
		return Report{}, fmt.Errorf("ownership of %q: %w", dir, err)
	}
	if options.Group == nil {
		return Report{Skipped: true, Reason: noGroup}, nil
	}
	if err := ctx.Err(); err != nil {
		return Report{}, fmt.Errorf("ownership of %q: nothing was begun: %w: %w", dir, ErrTransient, err)
	}
	w := newWork(dir, options)
	c := start(ctx, w.do)
	w.watch(ctx, c.done)
	err := c.wait(ctx, dir)
	return w.report(), err
}

func (o Options) check() error {
	if err := CheckGroup(o.Group); err != nil {
		return err
	}
	if o.Policy == nil {
		return nil
	}
	switch *o.Policy {
	case v1.FSGroupChangeAlways, v1.FSGroupChangeOnRootMismatch:
		return nil
	}
	return fmt.Errorf("there is no fsGroupChangePolicy %q: use %s or %s: %w",
		*o.Policy, v1.FSGroupChangeAlways, v1.FSGroupChangeOnRootMismatch, ErrInvalid)
}

func (o Options) onRootMismatch() bool {
	return o.Policy != nil && *o.Policy == v1.FSGroupChangeOnRootMismatch
}

// CheckGroup refuses a number that is no group id with an error that matches [ErrInvalid]. Nil is none, and is fine. The
// largest 32-bit number is refused because it means "no change" to chown(2), and a larger one because the kernel would
// take another group.
func CheckGroup(group *int64) error {
	if group == nil || *group >= 0 && *group < math.MaxUint32 {
		return nil
	}
	return fmt.Errorf("fsGroup %d is no group id: use a number from 0 to %d: %w", *group, int64(math.MaxUint32-1), ErrInvalid)
}
