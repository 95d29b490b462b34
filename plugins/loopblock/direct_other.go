//go:build !linux

package loopblock

import (
	"fmt"
	"os"

	"github.com/volumekit/volumekit/volume"
)

func canDirectIO(file *os.File) error {
	return fmt.Errorf("direct I/O of %q: %w", file.Name(), volume.ErrUnsupported)
}
