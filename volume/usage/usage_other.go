//go:build !linux

package usage

import (
	"context"
	"errors"
	"fmt"
)

// Measure returns what the tree at root occupies. On this platform the error matches [errors.ErrUnsupported].
func Measure(_ context.Context, root string) (Usage, error) {
	return Usage{}, fmt.Errorf("disk usage of %q on this platform: %w", root, errors.ErrUnsupported)
}
