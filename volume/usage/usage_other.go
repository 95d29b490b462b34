//go:build !linux

package usage

import (
	"context"
	"errors"
	"fmt"
)

func (m *Measurer) measure(_ context.Context, root string) (Usage, error) {
	return Usage{}, fmt.Errorf("disk usage of %q on this platform: %w", root, errors.ErrUnsupported)
}

func filesystem(_ context.Context, path string, _ Expect) (FSInfo, error) {
	return FSInfo{}, fmt.Errorf("filesystem of %q on this platform: %w", path, errors.ErrUnsupported)
}
