//go:build !linux

package volumemanager

import (
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

// deviceNumber knows no devices here.
func deviceNumber(path string) (major, minor uint32, err error) {
	return 0, 0, fmt.Errorf("number of the device at %q on %s: %w", path, runtime.GOOS, volume.ErrUnsupported)
}
