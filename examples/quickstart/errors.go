package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/volume"
)

// The exit codes.
const (
	exitFailed   = 1
	exitBadInput = 2
	exitSignal   = 128 // plus the signal's number
)

// inputError says that the flags or the manifests are wrong. Each of its errors says what to change.
type inputError struct{ errs []error }

// badInput returns an inputError of errs, or nil when there are none.
func badInput(errs ...error) error {
	if len(errs) == 0 {
		return nil
	}
	return &inputError{errs: errs}
}

func (e *inputError) Error() string   { return errors.Join(e.errs...).Error() }
func (e *inputError) Unwrap() []error { return e.errs }

// signalError says that a signal cut the story short. It is the cause of the context that the signal ended.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("ended by signal %q", e.signal) }

// failures are several errors of one run, each to be told by itself.
type failures []error

// join returns those of errs that are not nil, nil when there are none.
func join(errs ...error) error {
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

func (f failures) Error() string   { return errors.Join(f...).Error() }
func (f failures) Unwrap() []error { return f }

// leftoverError says that something was left behind.
type leftoverError struct {
	left leftovers
	root string
}

func (e *leftoverError) Error() string {
	return fmt.Sprintf("this is left under %s:%s", e.root, e.left)
}

// cutShort returns, of an error that came from the end of ctx, the signal that ended it; any other error as it is.
func cutShort(ctx context.Context, err error) error {
	var sig *signalError
	if errors.As(err, &sig) || errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return err
}

// stuckError says that volumes could not be taken away in time.
type stuckError struct{ err error }

func (e *stuckError) Error() string { return "take the volumes away: " + e.err.Error() }
func (e *stuckError) Unwrap() error { return e.err }

// exitCode returns the code with which the program ends.
func exitCode(err error) int {
	var input *inputError
	var left *leftoverError
	var sig *signalError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &left):
		return exitFailed
	case errors.As(err, &input):
		return exitBadInput
	case errors.As(err, &sig):
		number, _ := sig.signal.(syscall.Signal)
		return exitSignal + int(number)
	case errors.Is(err, volume.ErrInvalid): // only the plugin could see it, when it mounted
		return exitBadInput
	}
	return exitFailed
}

// explainer is an error that has more to say to a person than its one line.
type explainer interface {
	error
	explain() string
}

// explain returns err as lines for a person: one for each thing that is wrong.
func explain(err error) string {
	var e explainer
	var notReady *volume.NotReadyError
	switch {
	case errors.As(err, &e):
		return e.explain()
	case errors.As(err, &notReady):
		return explainNotReady(fmt.Sprintf("the volumes of pod %s are not ready", notReady.PodName), notReady)
	}
	return err.Error()
}

func (f failures) explain() string    { return explainEach(f) }
func (e *inputError) explain() string { return explainEach(e.errs) }

func (e *stuckError) explain() string {
	var notReady *volume.NotReadyError
	if !errors.As(e.err, &notReady) {
		return e.Error()
	}
	return explainNotReady("volumes could not be taken away", notReady)
}

func explainEach(errs []error) string {
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = explain(err)
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
