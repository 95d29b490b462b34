package inspect

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// History remembers the last operations of each volume, for the time lines of a node's handler. It is an
// [operationexecutor.Observer]: give the same one to volumemanager.Options.Observer and to [NodeOptions]. Make it with
// [NewHistory]. Its methods may be called from several goroutines at once.
//
// It remembers the last four operations for each pod's volume, and the last four of a volume for no pod, each with its
// first 32 steps. If it has more volumes than [HistoryOptions] allows, it forgets the one whose last operation began
// first.
type History struct {
	most int

	mu    sync.Mutex
	known map[historyKey]*list.Element
	// order has a *past for each of known, the one whose last operation began longest ago first.
	order *list.List
}

var _ operationexecutor.Observer = (*History)(nil)

// HistoryOptions configures a [History].
type HistoryOptions struct {
	// Volumes is the largest number of volumes of pods; zero means 4096. A volume takes about 2 KiB if its operations
	// succeed, and up to about 6 KiB if they fail with long errors.
	Volumes int
}

// NewHistory returns an empty history.
func NewHistory(options HistoryOptions) *History {
	return &History{most: cmp.Or(options.Volumes, 4096), known: make(map[historyKey]*list.Element), order: list.New()}
}

// The limits for one volume.
const (
	maxOperations = 4
	maxSteps      = 32
)

// historyKey is the volume and the pod of remembered operations; the pod is empty for operations for no pod.
type historyKey struct {
	volume v1.UniqueVolumeName
	pod    volume.UniquePodName
}

// past holds the operations of one key, the oldest first.
type past struct {
	key        historyKey
	operations []Operation
}

// OperationStarted implements operationexecutor.Observer.
func (h *History) OperationStarted(o operationexecutor.OperationInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.begin(historyKey{o.VolumeName, o.PodName})
	if len(p.operations) == maxOperations {
		p.operations = slices.Delete(p.operations, 0, 1)
	}
	p.operations = append(p.operations, Operation{Kind: string(o.Kind), Started: o.Started, Running: true})
}

// begin returns the past of a key, and moves it to the end of the order. It forgets another key if there are too many.
func (h *History) begin(key historyKey) *past {
	if known, ok := h.known[key]; ok {
		h.order.MoveToBack(known)
		return pastOf(known)
	}
	if len(h.known) >= h.most {
		oldest := h.order.Front()
		delete(h.known, pastOf(oldest).key)
		h.order.Remove(oldest)
	}
	p := &past{key: key}
	h.known[key] = h.order.PushBack(p)
	return p
}

// pastOf returns the past of an element of the order.
func pastOf(e *list.Element) *past {
	p, _ := e.Value.(*past)
	return p
}

// OperationStepped implements operationexecutor.Observer.
func (h *History) OperationStepped(o operationexecutor.OperationInfo, s operationexecutor.Step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if running := h.running(o); running != nil && len(running.Steps) < maxSteps {
		running.Steps = append(running.Steps, OperationStep{
			Name: text(s.Name), Started: s.Started, Seconds: s.Duration.Seconds(), Error: textOf(s.Err),
		})
	}
}

// OperationFinished implements operationexecutor.Observer.
func (h *History) OperationFinished(o operationexecutor.OperationInfo, r operationexecutor.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if running := h.running(o); running != nil {
		running.Running, running.Seconds, running.Error = false, r.Duration.Seconds(), textOf(r.Err)
	}
}

// running returns an operation that has not ended; nil if it was forgotten.
func (h *History) running(o operationexecutor.OperationInfo) *Operation {
	known, ok := h.known[historyKey{o.VolumeName, o.PodName}]
	if !ok {
		return nil
	}
	operations := pastOf(known).operations
	for i := range operations {
		if op := &operations[i]; op.Running && op.Kind == string(o.Kind) && op.Started.Equal(o.Started) {
			return op
		}
	}
	return nil
}

// of returns copies of the operations for a pod's volume and of the volume's operations for no pod, the oldest first.
func (h *History) of(name v1.UniqueVolumeName, pod volume.UniquePodName) []Operation {
	if h == nil || name == "" {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Operation
	for _, key := range slices.Compact([]historyKey{{name, pod}, {name, ""}}) {
		if known, ok := h.known[key]; ok {
			all = append(all, pastOf(known).operations...)
		}
	}
	for i := range all {
		all[i].Steps = slices.Clone(all[i].Steps)
	}
	slices.SortStableFunc(all, func(a, b Operation) int { return a.Started.Compare(b.Started) })
	return all
}

// Operation is one operation of a volume, from [operationexecutor.Observer].
type Operation struct {
	// Kind is its kind, an [operationexecutor.OperationKind].
	Kind string `json:"kind"`
	// Started is when it began.
	Started time.Time `json:"started"`
	// Running is true until it has ended; Seconds is its duration, and zero until then.
	Running bool    `json:"running,omitempty"`
	Seconds float64 `json:"seconds"`
	// Error is why it failed; empty when it did not.
	Error string `json:"error,omitempty"`
	// Steps are its calls of the plugin and its other long steps, in order; at most 32.
	Steps []OperationStep `json:"steps,omitempty"`
}

// OperationStep is one step of an [Operation].
type OperationStep struct {
	// Name is the call, such as MountDevice or SetUp.
	Name string `json:"name"`
	// Started is when it began, Seconds its duration.
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Error is why it failed; empty when it did not.
	Error string `json:"error,omitempty"`
}
