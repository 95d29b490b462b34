package loop

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// InUseError says that a device is held. It matches [ErrInUse] and EBUSY.
type InUseError struct {
	// Path is the device's node.
	Path string
	// Holders are those who hold it, as far as this process may see them; at most a few.
	Holders []Holder
	// Pending is true when the kernel was told to detach the device with its last close. The error then matches
	// mount.ErrUncertain.
	Pending bool
}

// Holder is one who holds a device.
type Holder struct {
	// PID is a process that has the device open, or in whose mount namespace it is mounted.
	PID int
	// MountPath is where it is mounted, as that process sees it; empty when it is open.
	MountPath string
}

// Error says who holds the device and what to do.
func (e *InUseError) Error() string {
	var b strings.Builder
	if e.Pending {
		fmt.Fprintf(&b, "%s is still open and will be detached with its last close", e.Path)
	} else {
		fmt.Fprintf(&b, "%s is mounted, perhaps in another mount namespace, or opened exclusively: unmount it first", e.Path)
	}
	for _, h := range e.Holders {
		if h.MountPath != "" {
			fmt.Fprintf(&b, "; mounted at %q for process %d", h.MountPath, h.PID)
		} else {
			fmt.Fprintf(&b, "; open in process %d", h.PID)
		}
	}
	return b.String()
}

// Uncertain is Pending.
func (e *InUseError) Uncertain() bool { return e.Pending }

// Unwrap returns ErrInUse and EBUSY, and mount.ErrUncertain where the detachment is pending.
func (e *InUseError) Unwrap() []error {
	if e.Pending {
		return []error{ErrInUse, syscall.EBUSY, mount.ErrUncertain}
	}
	return []error{ErrInUse, syscall.EBUSY}
}
