//go:build !linux

package loopblock

import (
	"fmt"
	"os"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

func isRootOf(dir *os.File, _ mount.MountPoint) (bool, error) {
	return false, fmt.Errorf("the mount of %q: %w", dir.Name(), volume.ErrUnsupported)
}
