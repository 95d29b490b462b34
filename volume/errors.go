package volume

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/outcome"
)

// The sentinels of this package. Match them with errors.Is; every one survives any wrapping.
var (
	// ErrUncertain says that the effect of a call may be there, or may still come. What is uncertain is set up again
	// before it is used and torn down before it is forgotten.
	ErrUncertain = outcome.ErrUncertain
	// ErrTransient says that a call began nothing and may work later.
	ErrTransient = outcome.ErrTransient
	// ErrNoPlugin says that no registered plugin serves what was asked for.
	ErrNoPlugin = errors.New("no volume plugin matched")
	// ErrMultiplePlugins says that more than one registered plugin serves what was asked for.
	ErrMultiplePlugins = errors.New("multiple volume plugins matched")
	// ErrUnsupported says that the plugin, the platform or the kernel cannot do what was asked for.
	ErrUnsupported = errors.New("not supported")
	// ErrInUse says that something still uses the volume. Nothing was changed.
	ErrInUse = errors.New("in use")
	// ErrDirectoryKept says that TearDown, TearDownAt or UnmountDevice has taken the volume away, with all that the plugin had
	// made, but for the directory, which holds something that the plugin did not put there. The executor counts the call as
	// done, once nothing is mounted there, and tells of the directory.
	ErrDirectoryKept = errors.New("the directory holds something else and was kept")
	// ErrAttachLimit says that a node has as many volumes as it can have. The volume was not attached; it may be attached
	// after another one is detached.
	ErrAttachLimit = errors.New("node has no room for another volume")
	// ErrInfeasible says that what was asked for can never be met with these arguments.
	ErrInfeasible = errors.New("can never be met")
	// ErrNotFound says that an object does not exist, such as a secret. It is store.ErrNotFound, too.
	ErrNotFound = outcome.ErrNotFound
	// ErrInvalid says that an argument, a name or a spec is malformed.
	ErrInvalid = errors.New("invalid")
)

// Uncertain marks err: the result matches [ErrUncertain]. Nil stays nil.
func Uncertain(err error) error { return mark(err, ErrUncertain) }

// Transient marks err: the result matches [ErrTransient]. Nil stays nil.
func Transient(err error) error { return mark(err, ErrTransient) }

func mark(err, class error) error {
	if err == nil || errors.Is(err, class) {
		return err
	}
	return &classed{err: err, class: class}
}

// classed adds a class to an error and leaves its text alone.
type classed struct{ err, class error }

func (c *classed) Error() string   { return c.err.Error() }
func (c *classed) Unwrap() []error { return []error{c.err, c.class} }

// Error says which operation on which volume failed. The executor wraps each error of a plugin in it once.
type Error struct {
	// Op is the operation, as in metrics and logs: "volume_mount", "volume_attach", ...
	Op string
	// Plugin is the plugin's name, empty when none was found.
	Plugin string
	// Volume is the volume.
	Volume v1.UniqueVolumeName
	// Err is the cause; never nil.
	Err error
}

// Error returns the operation, the volume, the plugin and the cause in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Volume != "" {
		fmt.Fprintf(&b, " of volume %q", e.Volume)
	}
	if e.Plugin != "" {
		fmt.Fprintf(&b, " by plugin %q", e.Plugin)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// DanglingAttachError is what [Attacher].Attach returns when it finds the volume attached to another node than the one that
// was asked for. That node is then the one to which the volume may be attached, not the one that was asked for.
type DanglingAttachError struct {
	// CurrentNode is the node to which the volume is attached.
	CurrentNode types.NodeName
	// DevicePath is the absolute path of the device on that node; empty when it is not known.
	DevicePath string
	// Err is the cause; nil when there is nothing to add.
	Err error
}

// Error names the node.
func (e *DanglingAttachError) Error() string {
	s := fmt.Sprintf("the volume is attached to node %q", e.CurrentNode)
	if e.DevicePath != "" {
		s += fmt.Sprintf(" as %q", e.DevicePath)
	}
	if e.Err != nil {
		s += fmt.Sprintf(": %v", e.Err)
	}
	return s
}

// Unwrap returns the cause, or nil.
func (e *DanglingAttachError) Unwrap() error { return e.Err }

// PendingError says that an operation did not start because another one on the same volume, pod or node is running.
type PendingError struct {
	// Op is the operation that did not start.
	Op string
	// Running is the operation that is in its way.
	Running string
	// Volume is the volume of both.
	Volume v1.UniqueVolumeName
	// Since is when the running operation started.
	Since time.Time
}

// Error says what waits for what.
func (e *PendingError) Error() string {
	return fmt.Sprintf("%s of volume %q did not start: %s is running since %s",
		e.Op, e.Volume, e.Running, e.Since.Format(time.RFC3339))
}

// BackoffError says that an operation did not start because it failed a short while ago.
type BackoffError struct {
	// Op is the operation that did not start.
	Op string
	// Volume is its volume.
	Volume v1.UniqueVolumeName
	// Attempts is how often it failed in a row.
	Attempts int
	// Until is when it may start again.
	Until time.Time
	// Err is why it failed the last time; never nil.
	Err error
}

// Error says when the operation may start again and why it failed.
func (e *BackoffError) Error() string {
	return fmt.Sprintf("%s of volume %q waits until %s after %d failures: %v",
		e.Op, e.Volume, e.Until.Format(time.RFC3339), e.Attempts, e.Err)
}

// Unwrap returns why the operation failed the last time.
func (e *BackoffError) Unwrap() error { return e.Err }

// NotReadyError says why a pod's volumes are not ready, or not gone. It names each such volume with its phase and its last real
// cause. It matches every cause and, if a deadline ended the wait, context.DeadlineExceeded.
type NotReadyError struct {
	// PodName is the pod's namespace and name; empty if the wait was for a whole node.
	PodName types.NamespacedName
	// Awaited is the state that the caller waited for: "ready" or "gone". Empty means "ready".
	Awaited string
	// Volumes are the volumes that are not in that state, sorted by outer name.
	Volumes []NotReadyVolume
	// Err is what ended the wait.
	Err error
}

// NotReadyVolume is a volume of a [NotReadyError].
type NotReadyVolume struct {
	// PodName is the pod's namespace and name if the wait was for a whole node. It is empty for the wait of one pod, and for a
	// volume that no pod has.
	PodName types.NamespacedName
	// OuterName is the name in the pod's spec.
	OuterName string
	// Volume is the volume's unique name; empty while it is not known.
	Volume v1.UniqueVolumeName
	// Plugin is the plugin's name; empty while it is not known.
	Plugin string
	// Phase is the step that runs, or what the volume waits for.
	Phase string
	// Since is when the running operation began; zero if none runs.
	Since time.Time
	// Err is the last real cause; nil if nothing has failed.
	Err error
	// Attempts is the number of failures in a row.
	Attempts int
	// NextTry is when the next attempt begins; zero if no back-off runs.
	NextTry time.Time
	// HungCall is the plugin's call that has not returned since HungSince; empty if none hangs.
	HungCall  string
	HungSince time.Time
}

// Error names each volume with its phase and cause in one line.
func (e *NotReadyError) Error() string {
	var b strings.Builder
	whose := "the node"
	if e.PodName != (types.NamespacedName{}) {
		whose = fmt.Sprintf("pod %q", e.PodName)
	}
	fmt.Fprintf(&b, "volumes of %s are not %s", whose, cmp.Or(e.Awaited, "ready"))
	for i, v := range e.Volumes {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(v.String())
	}
	if e.Err != nil {
		fmt.Fprintf(&b, " (%v)", e.Err)
	}
	return b.String()
}

// String returns the volume, its phase and its cause in one line. It uses the unique name if the volume has no outer name.
func (v NotReadyVolume) String() string {
	s := strconv.Quote(cmp.Or(v.OuterName, string(v.Volume)))
	if v.PodName != (types.NamespacedName{}) {
		s += fmt.Sprintf(" of pod %q", v.PodName)
	}
	s += " is " + v.Phase
	if !v.Since.IsZero() {
		s += " since " + v.Since.Format(time.RFC3339)
	}
	if v.HungCall != "" {
		s += fmt.Sprintf(", %s of plugin %q has not returned since %s", v.HungCall, v.Plugin, v.HungSince.Format(time.RFC3339))
	}
	if v.Err != nil {
		s += fmt.Sprintf(": %v", v.Err)
	}
	if v.Attempts > 1 {
		s += fmt.Sprintf(", failed %d times", v.Attempts)
	}
	if !v.NextTry.IsZero() {
		s += ", next try at " + v.NextTry.Format(time.RFC3339)
	}
	return s
}

// Unwrap returns every cause and what ended the wait.
func (e *NotReadyError) Unwrap() []error {
	errs := make([]error, 0, len(e.Volumes)+1)
	for _, v := range e.Volumes {
		if v.Err != nil {
			errs = append(errs, v.Err)
		}
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}
