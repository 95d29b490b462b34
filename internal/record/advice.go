package record

import (
	"errors"
	"syscall"
)

// advices say what an operator can do about an error of the disk.
var advices = []struct {
	is     syscall.Errno
	advice string
}{
	{syscall.ENOSPC, "free space there"},
	{syscall.EDQUOT, "raise the quota there"},
	{syscall.EROFS, "make it writable"},
	{syscall.EMFILE, "raise the process's limit of open files"},
	{syscall.ENFILE, "raise the system's limit of open files"},
	{syscall.EIO, "check its disk"},
}

// WithAdvice returns err with what an operator can do about it, if it is an error of the disk that is full, read-only or broken, or of
// too many open files. It returns every other error, and nil, as it is.
func WithAdvice(err error) error {
	for _, a := range advices {
		if errors.Is(err, a.is) {
			return &advised{err: err, advice: a.advice}
		}
	}
	return err
}

// advised is an error with an advice.
type advised struct {
	err    error
	advice string
}

func (a *advised) Error() string { return a.err.Error() + ": " + a.advice }
func (a *advised) Unwrap() error { return a.err }
