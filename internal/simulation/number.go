package simulation

import (
	"os"
	"strconv"
)

// Test has the methods of a *testing.T that [Number] uses.
type Test interface {
	// Helper marks the caller as a helper of the test.
	Helper()
	// Fatal ends the test as failed.
	Fatal(args ...any)
}

// Number returns the number in a variable of the environment; otherwise if the variable is empty or not set. If it is not a number,
// the test fails.
func Number(t Test, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(name, err)
	}
	return n
}
