//go:build !linux

package containers

import (
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

// DeviceNumber knows no devices here.
func DeviceNumber(path string) (major, minor uint32, err error) {
	return 0, 0, fmt.Errorf("number of the device at %q on %s: %w", path, runtime.GOOS, volume.ErrUnsupported)
}
