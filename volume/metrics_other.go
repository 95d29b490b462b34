//go:build !linux

package volume

import "fmt"

func deviceSize(device string) (int64, error) {
	return 0, fmt.Errorf("size of %q on this platform: %w", device, ErrUnsupported)
}
