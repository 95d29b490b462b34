package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
)

// output is where the program tells what it does. People read text; with -json, programs read one document per line.
// Its methods may be called from several goroutines at once.
type output struct {
	mu   sync.Mutex
	text io.Writer
	errs io.Writer
	json *json.Encoder // nil without -json
}

// newOutput returns the output of a run. With -json the text gives way to standard error.
func newOutput(o options, stdout, stderr io.Writer) *output {
	if o.json {
		return &output{text: stderr, errs: stderr, json: json.NewEncoder(stdout)}
	}
	return &output{text: stdout, errs: stderr}
}

// say writes one line for people. That nobody reads it any more is no reason to stop: the volumes must be taken away.
func (o *output) say(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.text, format+"\n", args...)
}

// report writes one document for programs, if any is listening.
func (o *output) report(document any) {
	if o.json == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.json.Encode(document)
}

// fail tells why the run failed and returns the exit code.
func (o *output) fail(err error) int {
	text := explain(err)
	o.report(struct {
		Stage string `json:"stage"`
		Error string `json:"error"`
	}{"failed", text})
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.errs, "quickstart: %s\n", strings.ReplaceAll(text, "\n", "\nquickstart: "))
	return exitCode(err)
}
