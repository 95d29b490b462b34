package simulation

import (
	"os"
	"strconv"
)

// Test is what [Number] needs of a *testing.T.
type Test interface {
	// Helper marks the caller as a helper of the test.
	Helper()
	// Fatal ends the test as failed.
	Fatal(args ...any)
}

// Number returns what a variable of the environment says, or the default. If it is no number, the test fails.
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
