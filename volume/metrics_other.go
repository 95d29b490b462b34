//go:build !linux

package volume

import "fmt"

func statfs(path string) (*Metrics, error) {
	return nil, fmt.Errorf("statfs of %q on this platform: %w", path, ErrUnsupported)
}

func deviceSize(device string) (int64, error) {
	return 0, fmt.Errorf("size of %q on this platform: %w", device, ErrUnsupported)
}
