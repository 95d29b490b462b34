//go:build !linux && !darwin

package record

import (
	"fmt"
	"os"
)

// directory is not written for this platform.
type directory struct{ fd *os.File }

func openDirectory(path string) (directory, error) {
	return directory{}, fmt.Errorf("lock of %q: %w", path, ErrUnsupported)
}

func (directory) checkOwner() error { return ErrUnsupported }

func (directory) read(string) ([]byte, error) { return nil, ErrUnsupported }

func isUnreadable(error) bool { return false }
