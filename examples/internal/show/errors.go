package show

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/volume"
)

// The exit codes.
const (
	ExitFailed   = 1   // something failed
	ExitBadInput = 2   // the flags or the manifests are wrong
	ExitSignal   = 128 // plus the signal's number
)

// InputError says that the flags or the manifests are wrong. Each of its errors says what to change.
type InputError struct{ errs []error }

// BadInput returns an InputError of errs, or nil when there are none.
func BadInput(errs ...error) error {
	if len(errs) == 0 {
		return nil
	}
	return &InputError{errs: errs}
}

// Error has one line for each error.
func (e *InputError) Error() string { return errors.Join(e.errs...).Error() }

// Unwrap returns all of them.
func (e *InputError) Unwrap() []error { return e.errs }

// failures are several errors of one run, each to be told by itself.
type failures []error

// Join returns those of errs that are not nil, nil when there are none.
func Join(errs ...error) error {
	var all failures
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

// Error has one line for each error.
func (f failures) Error() string { return errors.Join(f...).Error() }

// Unwrap returns all of them.
func (f failures) Unwrap() []error { return f }

// CutShort returns, of an error that came from the end of ctx, the signal that ended it; any other error as it is.
func CutShort(ctx context.Context, err error) error {
	var sig *sandbox.SignalError
	if errors.As(err, &sig) || errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return err
}

// StuckError says that volumes could not be taken away in time.
type StuckError struct {
	// Err is why.
	Err error
}

// Error says why.
func (e *StuckError) Error() string { return "take the volumes away: " + e.Err.Error() }

// Unwrap returns why.
func (e *StuckError) Unwrap() error { return e.Err }

// ExitCode returns the code with which the program ends.
func ExitCode(err error) int {
	var input *InputError
	var left *sandbox.LeftoverError
	var sig *sandbox.SignalError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &left):
		return ExitFailed
	case errors.As(err, &input):
		return ExitBadInput
	case errors.As(err, &sig):
		number, _ := sig.Signal.(syscall.Signal)
		return ExitSignal + int(number)
	case errors.Is(err, volume.ErrInvalid): // only the plugin could see it, when it mounted
		return ExitBadInput
	}
	return ExitFailed
}

// explainer is an error that has more to say to a person than its one line.
type explainer interface {
	error
	Explain() string
}

// Explain returns err as lines for a person: one for each thing that is wrong.
func Explain(err error) string {
	var e explainer
	var notReady *volume.NotReadyError
	switch {
	case errors.As(err, &e):
		return e.Explain()
	case errors.As(err, &notReady):
		return explainNotReady(fmt.Sprintf("the volumes of pod %s are not ready", notReady.PodName), notReady)
	}
	return err.Error()
}

// Explain has what each of them has to say.
func (f failures) Explain() string { return explainEach(f) }

// Explain has what each of them has to say.
func (e *InputError) Explain() string { return explainEach(e.errs) }

// Explain says of each volume where it stands and why.
func (e *StuckError) Explain() string {
	var notReady *volume.NotReadyError
	if !errors.As(e.Err, &notReady) {
		return e.Error()
	}
	return explainNotReady("volumes could not be taken away", notReady)
}

func explainEach(errs []error) string {
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = Explain(err)
	}
	return strings.Join(lines, "\n")
}

// explainNotReady says what, and of each volume where it stands and why.
func explainNotReady(what string, err *volume.NotReadyError) string {
	var b strings.Builder
	b.WriteString(what)
	if errors.Is(err.Err, context.DeadlineExceeded) {
		b.WriteString(" in time (-timeout gives them longer)")
	}
	for _, v := range err.Volumes {
		b.WriteString("\n  " + oneLine(v.String()))
	}
	return b.String()
}

// oneLine makes one line of the text of several errors.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
