//go:build unix

package volumemanager

import (
	"errors"
	"syscall"
)

// rmdir removes an empty directory and nothing else; os.Remove would remove a file as well.
func rmdir(path string) error { return syscall.Rmdir(path) }

// isMissing reports whether err says that there is nothing at the path.
func isMissing(err error) bool { return errors.Is(err, syscall.ENOENT) }
