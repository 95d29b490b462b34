package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// output prints one line for each event. It receives an event printer's lines; an orchestrator forwards events to its
// users.
type output struct {
	mu sync.Mutex
	to io.Writer
}

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

// nameOf returns an object's namespace and name.
func nameOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}
