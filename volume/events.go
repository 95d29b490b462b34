package volume

import "k8s.io/apimachinery/pkg/runtime"

// EventRecorder tells users what happened to an object. client-go's record.EventRecorder has this method. It must return
// at once.
type EventRecorder interface {
	// Eventf records an event. eventtype is v1.EventTypeNormal or v1.EventTypeWarning, reason one word in CamelCase.
	Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any)
}
