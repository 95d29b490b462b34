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
	ExitFailed   = 1   // a failure
	ExitBadInput = 2   // the flags or the manifests are wrong
	ExitSignal   = 128 // plus the signal's number
)

// InputError says that the flags or the manifests are wrong. Each of its errors says what to change.
type InputError struct{ errs []error }

// BadInput returns an InputError with errs, or nil if there are none.
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

// failures are several errors of one run; each is printed on its own.
type failures []error

// Join returns the errors that are not nil; nil if there are none.
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

// CutShort returns the signal that ended ctx if err comes from the end of ctx, and otherwise err.
func CutShort(ctx context.Context, err error) error {
	var sig *sandbox.SignalError
	if errors.As(err, &sig) || errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return err
}

// StuckError says that volumes could not be unmounted in time.
type StuckError struct {
	// Err is the cause.
	Err error
}

// Error returns the text of the cause.
func (e *StuckError) Error() string { return "take the volumes away: " + e.Err.Error() }

// Unwrap returns the cause.
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
	case errors.Is(err, volume.ErrInvalid): // only the plugin could find it, during the mount
		return ExitBadInput
	}
	return ExitFailed
}

// explainer is an error with further lines for people.
type explainer interface {
	error
	Explain() string
}

// Explain returns err as lines for people: one for each failure.
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

// Explain lists each volume with its phase and its cause.
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

// explainNotReady returns the headline, and each volume with its phase and its cause.
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

// oneLine joins the text of several errors into one line.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
