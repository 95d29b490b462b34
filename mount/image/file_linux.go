package image

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

// tryLock takes the exclusive lock on file. It fails at once if another process has it.
func tryLock(file *os.File) error {
	return descriptor.Call(file, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
}

func allocate(file *os.File, size int64) error {
	return descriptor.Call(file, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
}

// extend relies on fallocate, which never makes a file smaller.
func extend(file *os.File, size int64) error {
	return descriptor.Call(file, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size >= size {
			return err
		}
		from := size - min(size, 512)
		if st.Blocks*512 >= st.Size {
			from = st.Size
		}
		return unix.Fallocate(fd, 0, from, size-from)
	})
}

func (d *Dir) publish(partial, name string) error {
	dir, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	err = descriptor.Call(dir, func(fd int) error {
		return unix.Renameat2(fd, partial, fd, name, unix.RENAME_NOREPLACE)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// This filesystem cannot refuse to replace. No file has the name, if it was looked for under the lock.
		err = d.root.Rename(partial, name)
	}
	return err
}

func share(to, from *os.File) error {
	err := descriptor.Call(to, func(target int) error {
		return descriptor.Call(from, func(source int) error { return unix.IoctlFileClone(target, source) })
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS),
		errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// sharesInOneStep is true for xfs and btrfs: their remap_file_range holds the locks of both files from the flush of the source to the
// end.
func sharesInOneStep(file *os.File) bool {
	var fs unix.Statfs_t
	err := descriptor.Call(file, func(fd int) error { return unix.Fstatfs(fd, &fs) })
	kind := int64(fs.Type) //nolint:unconvert // narrower elsewhere
	return err == nil && (kind == unix.XFS_SUPER_MAGIC || kind == unix.BTRFS_SUPER_MAGIC)
}

func spaceOf(file *os.File) (Space, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	err := descriptor.Call(file, func(fd int) error { return errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)) })
	return Space{Holes: max(0, st.Size-st.Blocks*512), Free: int64(fs.Bavail) * int64(fs.Bsize)}, err //nolint:unconvert // narrower elsewhere
}

func syncFilesystem(dir *os.File) error { return descriptor.Call(dir, unix.Syncfs) }

// nextData returns the next run of data at or after offset; an empty run at size if there is none. A filesystem without support for
// holes has data everywhere.
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
