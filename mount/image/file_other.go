//go:build !linux

package image

import (
	"fmt"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

func unsupported() error { return fmt.Errorf("images on %s: %w", runtime.GOOS, mount.ErrUnsupported) }

func tryLock(*os.File) error { return unsupported() }

func allocate(*os.File, int64) error { return unsupported() }

func extend(*os.File, int64) error { return unsupported() }

func (d *Dir) publish(string, string) error { return unsupported() }

func share(*os.File, *os.File) error { return unsupported() }

func spaceOf(*os.File) (Space, error) { return Space{}, unsupported() }

func sharesInOneStep(*os.File) bool { return false }

func syncFilesystem(*os.File) error { return unsupported() }

func nextData(*os.File, int64, int64) (start, end int64, err error) { return 0, 0, unsupported() }
