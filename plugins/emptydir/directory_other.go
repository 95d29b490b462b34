//go:build !linux

package emptydir

import (
	"fmt"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

func makeDirectory(_ *os.File, dir string, _ *int64, _ func(made *os.File) error) error {
	return fmt.Errorf("making %s on %s: %w", dir, runtime.GOOS, volume.ErrUnsupported)
}
