package operationexecutor

import (
	"fmt"
	"io"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/volume"
)

// EventPrinter is a [volume.EventRecorder] that writes each event as one line, for programs whose users read a terminal or a log:
//
//	warning: Pod default/web: FailedMount: ...
//
// It may be given to managers and controllers at once. Make it with [NewEventPrinter].
type EventPrinter struct {
	mu sync.Mutex
	to io.Writer
}

var _ volume.EventRecorder = (*EventPrinter)(nil)

// NewEventPrinter returns a printer that writes to w, one line in one call at a time. A line that cannot be written is
// lost, so an event never delays the caller. w must return at once, too.
func NewEventPrinter(w io.Writer) *EventPrinter { return &EventPrinter{to: w} }

// Eventf implements [volume.EventRecorder].
func (p *EventPrinter) Eventf(object runtime.Object, eventType, reason, messageFmt string, args ...any) {
	line := strings.ToLower(eventType) + ": " + eventObject(object) + ": " + reason + ": " + fmt.Sprintf(messageFmt, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.to, strings.ReplaceAll(line, "\n", "; ")+"\n") // See NewEventPrinter.
}

// eventObject names an object by its kind, namespace and name, or by its UID: after a restart, that is all that is known of a pod
// that was not added again.
func eventObject(object runtime.Object) string {
	kind := fmt.Sprintf("%T", object)
	kind = kind[strings.LastIndexAny(kind, ".*")+1:]
	meta, ok := object.(metav1.Object)
	switch {
	case !ok:
		return kind
	case meta.GetName() == "":
		return kind + " " + string(meta.GetUID())
	case meta.GetNamespace() == "":
		return kind + " " + meta.GetName()
	}
	return kind + " " + meta.GetNamespace() + "/" + meta.GetName()
}
