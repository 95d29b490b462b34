package show

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Output prints what the program does: text for people; with -json, one document per line for programs. Its methods may
// be called from several goroutines at once.
type Output struct {
	mu   sync.Mutex
	text io.Writer
	errs io.Writer
	json *json.Encoder // nil without -json
}

// Documents reports whether the output is JSON.
type Documents bool

// AsJSON writes one document per line to standard output; the text goes to standard error.
const AsJSON Documents = true

// NewOutput returns the Output of a run. With -json the text goes to standard error.
func NewOutput(documents Documents, stdout, stderr io.Writer) *Output {
	if documents == AsJSON {
		return &Output{text: stderr, errs: stderr, json: json.NewEncoder(stdout)}
	}
	return &Output{text: stdout, errs: stderr}
}

// Say writes one line for people. It ignores errors of the write: the program must still unmount its volumes.
func (o *Output) Say(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.text, format+"\n", args...)
}

// Report writes one document with -json: the stage, then alternating names and values.
func (o *Output) Report(stage string, fields ...any) {
	if o.json == nil {
		return
	}
	document := []byte(`{"stage":` + strconv.Quote(stage))
	for i := 0; i+1 < len(fields); i += 2 {
		value, err := json.Marshal(fields[i+1])
		if err != nil {
			value = []byte("null")
		}
		document = fmt.Appendf(document, ",%q:%s", fields[i], value)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.json.Encode(json.RawMessage(append(document, '}')))
}

// Fail prints why the run failed and returns the exit code.
func (o *Output) Fail(err error) int {
	text := Explain(err)
	o.Report("failed", "error", text)
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.errs, "quickstart: %s\n", strings.ReplaceAll(text, "\n", "\nquickstart: "))
	return ExitCode(err)
}
