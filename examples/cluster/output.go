package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/operationexecutor"
)

// output prints what happens, one line for each thing. It is the EventRecorder of the controllers and of the manager.
type output struct {
	mu sync.Mutex
	to io.Writer
}

var _ operationexecutor.EventRecorder = (*output)(nil)

func newOutput(to io.Writer) *output { return &output{to: to} }

// say prints one line.
func (o *output) say(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintln(o.to, text)
}

// Write implements io.Writer, for a logger.
func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to.Write(text)
}

// Eventf implements operationexecutor.EventRecorder.
func (o *output) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	name := fmt.Sprintf("%T", object)
	if meta, ok := object.(metav1.Object); ok {
		name = strings.TrimPrefix(name, "*v1.") + " " + meta.GetName()
	}
	o.say("%s: %s: %s: %s", strings.ToLower(eventType), name, reason, fmt.Sprintf(format, args...))
}
