package call

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// unreadable is an error that cannot be read.
type unreadable struct{}

func (unreadable) Error() string { panic("no text") }

// A call that does not return an answer has not succeeded, and takes nothing down with it.
func TestACallThatDoesNotReturnIsUncertain(t *testing.T) {
	for name, bad := range map[string]func(context.Context) error{
		"panic":              func(context.Context) error { panic("oops") },
		"Goexit":             func(context.Context) error { runtime.Goexit(); return nil },
		"error not readable": func(context.Context) error { return unreadable{} },
	} {
		t.Run(name, func(t *testing.T) {
			c := New(time.Minute)
			err := c.Do(t.Context(), Call{Plugin: "example.com/bad", Method: "Delete", Object: `volume "a"`}, bad)
			require.ErrorIs(t, err, volume.ErrUncertain)
			var panicked *volume.PanicError
			require.ErrorAs(t, err, &panicked)
			assert.Equal(t, "Delete", panicked.Call)
			assert.Equal(t, name == "Goexit", errors.Is(err, operationexecutor.ErrGoexit))
		})
	}
}
