package show

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Output is where the program tells what it does. People read text; with -json, programs read one document per line.
// Its methods may be called from several goroutines at once.
type Output struct {
	mu   sync.Mutex
	text io.Writer
	errs io.Writer
	json *json.Encoder // nil without -json
}

// Documents says whether programs read the output.
type Documents bool

// AsJSON writes one document per line on standard output; the text gives way to standard error.
const AsJSON Documents = true

// NewOutput returns the Output of a run. With -json the text gives way to standard error.
func NewOutput(documents Documents, stdout, stderr io.Writer) *Output {
	if documents == AsJSON {
		return &Output{text: stderr, errs: stderr, json: json.NewEncoder(stdout)}
	}
	return &Output{text: stdout, errs: stderr}
}

// Say writes one line for people. That nobody reads it any more is no reason to stop: the volumes must be taken away.
func (o *Output) Say(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.text, format+"\n", args...)
}

// Report writes one document for programs, if any is listening: the stage, and then names and values in turn.
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

// Fail tells why the run failed and returns the exit code.
func (o *Output) Fail(err error) int {
	text := Explain(err)
	o.Report("failed", "error", text)
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = fmt.Fprintf(o.errs, "quickstart: %s\n", strings.ReplaceAll(text, "\n", "\nquickstart: "))
	return ExitCode(err)
}
