// Package descriptor makes system calls on the descriptor of an open file. The descriptor stays open during the call, also if
// another goroutine closes the file meanwhile.
package descriptor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// With calls f once with the descriptor of file. It returns the error of f. If the file is closed, f is not called, and the error
// matches os.ErrClosed.
func With(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return fmt.Errorf("%q: %w: %w", file.Name(), os.ErrClosed, err)
	}
	return inner
}

// Call is [With] for a single system call. It calls f again if a signal has interrupted it (EINTR).
func Call(file *os.File, f func(fd int) error) error {
	return With(file, func(fd int) error {
		for {
			if err := f(fd); !errors.Is(err, syscall.EINTR) {
				return err
			}
		}
	})
}

// MountID returns the id of the mount on which a descriptor was opened, from the line "mnt_id:" of proc_pid_fdinfo(5). It does not
// access the filesystem of that mount. If proc has no such line, the error matches errors.ErrUnsupported.
func MountID(fd int) (uint64, error) {
	path := "/proc/self/fdinfo/" + strconv.Itoa(fd)
	info, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(info) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return strconv.ParseUint(string(bytes.TrimSpace(id)), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no mnt_id: %w", path, errors.ErrUnsupported)
}
