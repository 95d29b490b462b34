package mount

import (
	"errors"

	"golang.org/x/sys/unix"
)

// limitError explains the errno of a call that would exceed the limit on mounts.
type limitError struct{ errno error }

// Error says what to do.
func (limitError) Error() string { return ErrTooManyMounts.Error() }

// Unwrap makes the error match [ErrTooManyMounts] and the errno.
func (e limitError) Unwrap() []error { return []error{ErrTooManyMounts, e.errno} }

// explainLimit turns ENOSPC into a limitError. Use it only for a call that adds a mount to the tree and needs no other
// space.
func explainLimit(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return limitError{err}
	}
	return err
}
