package volume

import (
	"fmt"
	"runtime/debug"
)

// PanicError says that a method of a plugin panicked. The call has failed; the process continues. A panic in a goroutine
// that a plugin has started cannot be caught, and the contract forbids it.
type PanicError struct {
	// Plugin is the plugin's name. It is its Go type if the plugin has not returned its name yet, and empty if the plugin
	// is not known.
	Plugin string
	// Call is the name of the method.
	Call string
	// Value is the value of the panic.
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

// Unwrap returns the value if it is an error, so errors.Is finds it.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// guard runs f, which calls a method of a plugin. It returns a panic of f as a [*PanicError].
func guard(plugin, call string, f func()) error { return guardCalls(plugin, &call, f) }

// guardCalls is guard for an f that calls several methods. *call names the method that runs.
func guardCalls(plugin string, call *string, f func()) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = newPanicError(plugin, *call, value)
		}
	}()
	f()
	return nil
}

// newPanicError makes the error from a recovered value.
func newPanicError(plugin, call string, value any) *PanicError {
	return &PanicError{Plugin: plugin, Call: call, Value: value, Stack: debug.Stack()}
}
