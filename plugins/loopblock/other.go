//go:build !linux

package loopblock

import (
	"fmt"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

func unsupported() error {
	return fmt.Errorf("plugin %s on %s: %w", Name, runtime.GOOS, volume.ErrUnsupported)
}

func tryLock(*os.File) error { return unsupported() }

func syncDir(string) error { return unsupported() }

func allocate(*os.File, int64) error { return unsupported() }

func extend(*os.File, int64) error { return unsupported() }

func (i *images) publish(string) error { return unsupported() }

func backingPathOf(string) (string, error) { return "", unsupported() }

func reflink(*os.File, *os.File) error { return unsupported() }

func reflinksInOneStep(*os.File) bool { return false }

func syncFilesystem(string) error { return unsupported() }

func syncFile(string) error { return unsupported() }

func nextData(*os.File, int64, int64) (start, end int64, err error) { return 0, 0, unsupported() }
