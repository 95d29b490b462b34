//go:build !linux

package emptydir

import (
	"context"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

func makeDirectory(_ context.Context, dir string, _ *int64) error {
	return fmt.Errorf("making %s on %s: %w", dir, runtime.GOOS, volume.ErrUnsupported)
}
