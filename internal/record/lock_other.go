//go:build !linux && !darwin

package record

import (
	"fmt"
	"io/fs"
	"os"
)

// lockFile is not written for this platform.
func lockFile(f *os.File) error {
	return fmt.Errorf("lock of %q: %w", f.Name(), ErrUnsupported)
}

// checkOwner leaves it to lockFile to say that this platform is not supported.
func checkOwner(fs.FileInfo) error { return nil }
