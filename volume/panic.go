package volume

import (
	"fmt"
	"runtime/debug"
)

// PanicError says that a method of a plugin panicked. The call has failed; the process continues. A panic in a goroutine
// that a plugin has started cannot be caught, and the contract forbids it.
type PanicError struct {
	// Plugin is the plugin's name, its Go type where it has not told its name, or empty where it is not known.
	Plugin string
	// Call is the method that panicked.
	Call string
	// Value is what it panicked with.
	Value any
	// Stack is the stack of the goroutine at the panic, for the plugin's author.
	Stack []byte
}

// Error names the plugin, the method and the value; the stack is left out.
func (e *PanicError) Error() string {
	if e.Plugin == "" {
		return fmt.Sprintf("panic in %s: %v", e.Call, e.Value)
	}
	return fmt.Sprintf("volume plugin %q panicked in %s: %v", e.Plugin, e.Call, e.Value)
}

// Unwrap returns the value when it is an error, so that errors.Is sees through the panic.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// guard runs f, which calls a method of a plugin, and returns a panic of it as a [*PanicError].
func guard(plugin, call string, f func()) error { return guardCalls(plugin, &call, f) }

// guardCalls is guard for several methods: *call is the one that runs.
func guardCalls(plugin string, call *string, f func()) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = newPanicError(plugin, *call, value)
		}
	}()
	f()
	return nil
}

// newPanicError is for the deferred function that has recovered value.
func newPanicError(plugin, call string, value any) *PanicError {
	return &PanicError{Plugin: plugin, Call: call, Value: value, Stack: debug.Stack()}
}
