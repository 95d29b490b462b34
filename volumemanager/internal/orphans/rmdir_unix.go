//go:build unix

package orphans

import (
	"errors"
	"syscall"
)

// rmdir removes an empty directory and nothing else; os.Remove would remove a file as well.
func rmdir(path string) error {
	for {
		if err := syscall.Rmdir(path); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// isOccupied reports whether err says that a directory is not empty, or that something is mounted there.
func isOccupied(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.EBUSY)
}

// isMissing reports whether err says that there is nothing at the path.
func isMissing(err error) bool { return errors.Is(err, syscall.ENOENT) }
