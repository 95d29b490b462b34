package fake

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// Event is one event that a [Recorder] received.
type Event struct {
	// Object is the object of the event, as the caller passed it.
	Object runtime.Object
	// Type is v1.EventTypeNormal or v1.EventTypeWarning.
	Type string
	// Reason is one word in CamelCase.
	Reason string
	// Message is the formatted message.
	Message string
}

// String returns type, reason and message in one line.
func (e Event) String() string { return e.Type + " " + e.Reason + ": " + e.Message }

// Recorder keeps the events that it receives. It is a volume.EventRecorder. The zero value is ready to use, also from
// several goroutines at once.
type Recorder struct {
	mu     sync.Mutex
	events []Event
}

// Eventf keeps the event. It never blocks.
func (r *Recorder) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, Event{
		Object: object, Type: eventtype, Reason: reason, Message: fmt.Sprintf(messageFmt, args...),
	})
}

// Events returns a copy of all events so far, oldest first.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}
