//go:build linux || darwin

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// lockFile takes the lock that ends with the open file, also when the process is killed.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		default:
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

// checkOwner refuses a directory in which others could leave records.
func checkOwner(dir fs.FileInfo) error {
	if mode := dir.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("its mode is %#o: chmod it to 0700: %w", mode, ErrUnsafe)
	}
	stat, ok := dir.Sys().(*syscall.Stat_t)
	if ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d and this is user %d: give a directory of its own: %w", stat.Uid, os.Geteuid(), ErrUnsafe)
	}
	return nil
}
