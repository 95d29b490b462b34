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

// failures ends the waits of Mount calls whose volume cannot be made available: Docker then shows the cause at once. It observes the
// volume manager. The zero value is ready.
type failures struct {
	mu      sync.Mutex
	waiting map[*waiter]struct{}
}

// waiter is one Mount call that waits.
type waiter struct {
	pod    volume.UniquePodName
	volume v1.UniqueVolumeName
	end    context.CancelCauseFunc
}

// finalError is why a volume cannot be made available.
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

// endsMount reports whether an operation has failed so that another attempt will not help. One that found something in use may work
// when what an earlier use has left is gone. The manager calls each attachment uncertain that the plugin refused: it undoes that when
// the use is taken back.
func endsMount(kind operationexecutor.OperationKind, r operationexecutor.Result) bool {
	if errors.Is(r.Err, volume.ErrInUse) {
		return false
	}
	switch kind { //nolint:exhaustive // no other operation makes a volume available
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
