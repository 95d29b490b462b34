//go:build !linux

package local

import (
	"fmt"
	"io/fs"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

func numberOf(fs.FileInfo) (major, minor uint32, err error) {
	return 0, 0, fmt.Errorf("devices on %s: %w", runtime.GOOS, volume.ErrUnsupported)
}

func groupOf(fs.FileInfo) (int64, error) {
	return 0, fmt.Errorf("groups on %s: %w", runtime.GOOS, volume.ErrUnsupported)
}
