//go:build !linux

package journal

import (
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

// bootID is not written for this platform.
func bootID() (string, error) {
	return "", fmt.Errorf("records on %s (set NoRecords): %w", runtime.GOOS, volume.ErrUnsupported)
}
