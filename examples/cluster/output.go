package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// output prints lines. An event printer writes to it too.
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
