//go:build !linux && !darwin

package record

import (
	"fmt"
	"os"
)

// lockFile is not written for this platform.
func lockFile(f *os.File) error {
	return fmt.Errorf("lock of %q: %w", f.Name(), ErrUnsupported)
}
