package loopblock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
)

// tryLock takes the exclusive lock on file, or fails at once when somebody has it.
func tryLock(file *os.File) error {
	return control(file, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
}

// allocate takes the space of a file without writing to it.
func allocate(file *os.File, size int64) error {
	err := control(file, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the filesystem of the images cannot do it: leave out the parameter: %w: %w", volume.ErrInfeasible, err)
	}
	return err
}

// extend makes a file end at size, unless it ends later. What it has already is not touched, whoever else extends it
// meanwhile: fallocate never makes a file smaller. A file whose space was all taken gets that of the new part, too.
func extend(file *os.File, size int64) error {
	err := control(file, func(fd int) error {
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
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the filesystem of the images cannot extend a file in one step: %w: %w", volume.ErrInfeasible, err)
	}
	return err
}

// publish gives the partial image its final name, which nobody may have.
func (i *images) publish(handle string) error {
	dir, err := i.root.Open(".")
	if err != nil {
		return fmt.Errorf("directory of images: %w", err)
	}
	defer dir.Close()
	from, to := handle+partialSuffix, handle+imageSuffix
	err = control(dir, func(fd int) error {
		return unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// This filesystem cannot refuse to replace. Nobody has the name: it was looked for under the lock.
		err = i.root.Rename(from, to)
	}
	if err != nil {
		return fmt.Errorf("renaming %q to %q: %w", i.path(from), i.path(to), err)
	}
	return nil
}

// syncDir makes what was made in a directory survive a power cut.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// control calls f with the descriptor of file, which stays open meanwhile.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) {
		inner = f(int(fd))
		for errors.Is(inner, unix.EINTR) {
			inner = f(int(fd))
		}
	}); err != nil {
		return err
	}
	return inner
}
