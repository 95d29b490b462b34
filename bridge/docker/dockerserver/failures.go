package dockerserver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// failures ends the waits of Mount calls whose volume cannot be set up: Docker then shows the cause at once. It
// observes the volume manager. The zero value is ready.
type failures struct {
	mu      sync.Mutex
	waiting map[*waiter]struct{}
}

// waiter is one waiting Mount call.
type waiter struct {
	pod    volume.UniquePodName
	volume v1.UniqueVolumeName
	end    context.CancelCauseFunc
}

// finalError is the reason why a volume cannot be set up.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// watch returns a context that ends with a *finalError when an operation for the pod's volume fails for good. The caller calls stop.
func (f *failures) watch(ctx context.Context, pod volume.UniquePodName, name v1.UniqueVolumeName) (watched context.Context, stop func()) {
	watched, end := context.WithCancelCause(ctx)
	w := &waiter{pod: pod, volume: name, end: end}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil {
		f.waiting = map[*waiter]struct{}{}
	}
	f.waiting[w] = struct{}{}
	return watched, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting, w)
		end(nil)
	}
}

// OperationStarted implements operationexecutor.Observer.
func (*failures) OperationStarted(operationexecutor.OperationInfo) {}

// OperationStepped implements operationexecutor.Observer.
func (*failures) OperationStepped(operationexecutor.OperationInfo, operationexecutor.Step) {}

// OperationFinished implements operationexecutor.Observer.
func (f *failures) OperationFinished(o operationexecutor.OperationInfo, r operationexecutor.Result) {
	if !endsMount(o.Kind, r) {
		return
	}
	for _, w := range f.waitingFor(o) {
		w.end(&finalError{r.Err})
	}
}

// endsMount reports whether an operation has failed so that a retry will not help. A retry after an ErrInUse may
// succeed, when an earlier use has ended. The manager counts every refused attachment as uncertain, and undoes it when
// the use is removed.
func endsMount(kind operationexecutor.OperationKind, r operationexecutor.Result) bool {
	if errors.Is(r.Err, volume.ErrInUse) {
		return false
	}
	switch kind { //nolint:exhaustive // no other operation sets a volume up
	case operationexecutor.OpMount:
		return r.Class == operationexecutor.Final
	case operationexecutor.OpAttach:
		later := errors.Is(r.Err, volume.ErrTransient) || errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, context.DeadlineExceeded)
		return r.Err != nil && !later && outcome.DoneOf(r.Err) == nil
	}
	return false
}

func (f *failures) waitingFor(o operationexecutor.OperationInfo) []*waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Keys(f.waiting)), func(w *waiter) bool {
		return w.pod != o.PodName && (o.PodName != "" || w.volume != o.VolumeName) // an attachment is for no pod
	})
}
