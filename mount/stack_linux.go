package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// stackBelow returns the mount and those that it lies on at its own path. The error is ErrUnsupported when the kernel cannot tell.
func (r *reader) stackBelow(top MountPoint) ([]MountPoint, error) {
	if top.UniqueID == 0 {
		return nil, ErrUnsupported
	}
	stack := []MountPoint{top}
	for len(stack) <= maxStack {
		above := stack[len(stack)-1].UniqueID
		var status mountStatus
		if err := statmountBasic(above, statmountMntBasic, &status); err != nil {
			return nil, fmt.Errorf("statmount: %w: %w", ErrUnsupported, err) // it has gone since
		}
		if status.parentID == above {
			return stack, nil
		}
		below, err := r.facts(status.parentID)
		if errors.Is(err, ErrNotMounted) || err == nil && below.Path != top.Path {
			return stack, nil // what it lies on is elsewhere, or out of reach
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		stack = append(stack, below)
	}
	return nil, fmt.Errorf("more than %d mounts lie on each other at %q: %w", maxStack, top.Path, unix.EBUSY)
}
