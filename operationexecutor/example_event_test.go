package operationexecutor_test

import (
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/operationexecutor"
)

// One printer takes the events of a manager and of controllers: it is their Options.Recorder and Options.Events.
func ExampleEventPrinter() {
	events := operationexecutor.NewEventPrinter(os.Stdout)
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	events.Eventf(claim, v1.EventTypeWarning, "FailedBinding", "no volume of class %q is free", "fast")
	// Output:
	// warning: PersistentVolumeClaim default/data: FailedBinding: no volume of class "fast" is free
}
