package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// SignalError says that a signal ended the program. It is the cause of the context that the signal ended.
type SignalError struct {
	// Signal is which.
	Signal os.Signal
}

// Error names the signal.
func (e *SignalError) Error() string { return fmt.Sprintf("ended by signal %q", e.Signal) }

// UntilSignal returns a context that ends with the first signal that ends a program; its cause is a [SignalError].
// Further signals, and readers that went away, do not keep the volumes from being taken away.
func UntilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Ignore(syscall.SIGPIPE)
	signal.Notify(signals, endingSignals()...)
	go func() {
		select {
		case s := <-signals:
			cancel(&SignalError{Signal: s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// endingSignals are the signals that end a program and that it can handle. A program that was started with nohup does
// not end with the terminal.
func endingSignals() []os.Signal {
	ending := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ending = append(ending, syscall.SIGHUP)
	}
	return ending
}
