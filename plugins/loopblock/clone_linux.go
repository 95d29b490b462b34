package loopblock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reflink makes to, which is empty, share all blocks with from until one of them is written. What the filesystem cannot share
// is an error that matches errors.ErrUnsupported, and to is empty still.
func reflink(to, from *os.File) error {
	err := control(to, func(target int) error {
		return control(from, func(source int) error { return unix.IoctlFileClone(target, source) })
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS),
		errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("FICLONE of %q: %w: %w", from.Name(), errors.ErrUnsupported, err)
	}
	return fmt.Errorf("FICLONE of %q: %w", from.Name(), err)
}

// reflinksInOneStep reports whether the filesystem of a file lets nobody write to it while it is cloned. These two hold the
// locks of both files from the flush of the source to the end, as their remap_file_range shows.
func reflinksInOneStep(file *os.File) bool {
	var fs unix.Statfs_t
	err := control(file, func(fd int) error { return unix.Fstatfs(fd, &fs) })
	kind := int64(fs.Type) //nolint:unconvert // narrower elsewhere
	return err == nil && (kind == unix.XFS_SUPER_MAGIC || kind == unix.BTRFS_SUPER_MAGIC)
}

// syncFilesystem writes all that the filesystem mounted at path has in memory.
func syncFilesystem(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := control(dir, unix.Syncfs); err != nil {
		return fmt.Errorf("syncfs of %q: %w", path, err)
	}
	return nil
}

// syncFile writes what is in memory of a file or device.
func syncFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}

// nextData returns the next run of data at or after offset; an empty one at size where there is none. A filesystem that knows
// no holes has data everywhere.
func nextData(file *os.File, offset, size int64) (start, end int64, err error) {
	start, err = file.Seek(offset, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL):
		return offset, size, nil
	case err != nil:
		return 0, 0, fmt.Errorf("SEEK_DATA: %w", err)
	}
	end, err = file.Seek(start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("SEEK_HOLE: %w", err)
	}
	return min(start, size), min(end, size), nil
}
