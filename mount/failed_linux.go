package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFilesystem syncs the root directory. A failed filesystem refuses that: with EIO after a shutdown, with EROFS after
// an error that made it read-only.
func checkFilesystem(path string) error {
	fd, err := retryOpen(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err == nil {
		defer closeFD(fd)
		err = retry(func() error { return unix.Fsync(fd) })
	}
	switch {
	case errors.Is(err, unix.EINVAL): // It has nothing to sync.
		return nil
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EROFS):
		return fmt.Errorf("the filesystem at %q: %w: %w", path, ErrFilesystemFailed, err)
	case err != nil:
		return fmt.Errorf("looking at the filesystem at %q: %w", path, err)
	}
	return nil
}
