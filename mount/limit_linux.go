package mount

import (
	"errors"

	"golang.org/x/sys/unix"
)

// limitError is the errno of a call that would have made one mount too many, in words that are about mounts.
type limitError struct{ errno error }

// Error says what to do.
func (limitError) Error() string { return ErrTooManyMounts.Error() }

// Unwrap has the error match [ErrTooManyMounts] and the errno.
func (e limitError) Unwrap() []error { return []error{ErrTooManyMounts, e.errno} }

// explainLimit is for the error of a call that puts a mount into the tree and needs no space for anything else.
func explainLimit(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return limitError{err}
	}
	return err
}
