package format

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// ErrSameIdentity says that a filesystem cannot be mounted beside another one of the same identity (UUID). The error is a
// [*SameIdentityError].
var ErrSameIdentity = errors.New("another filesystem with the same UUID is mounted")

// SameIdentityError names two filesystems with one identity. One is mounted, and one is a copy of the other, or of a snapshot of it.
type SameIdentityError struct {
	// Device is the one to mount. Other is mounted at Path.
	Device, Other, Path string
	// FSType and UUID are those of both.
	FSType, UUID string
	// Err is the kernel's error.
	Err error
}

// Error says what to do.
func (e *SameIdentityError) Error() string {
	return fmt.Sprintf("the %s on %s has the same UUID %s as that on %s, which is mounted at %q: unmount that, or give the copy a UUID of its own: %v",
		e.FSType, e.Device, e.UUID, e.Other, e.Path, e.Err)
}

// Unwrap returns [ErrSameIdentity] and the kernel's error.
func (e *SameIdentityError) Unwrap() []error { return []error{ErrSameIdentity, e.Err} }

// ExplainMount explains err, the error of a mount of device. It returns a [*SameIdentityError] if the kernel refused the mount
// because another filesystem of its identity is in table, the mount table: an xfs (EINVAL), or a btrfs before Linux 6.7 (EEXIST).
// Otherwise it returns err. It reads the superblocks of the devices of that type in table, and skips those that it cannot read.
func ExplainMount(ctx context.Context, device, fsType string, table []mount.MountPoint, err error) error {
	refused := errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EEXIST)
	if !refused || fsType != "xfs" && fsType != "btrfs" {
		return err
	}
	uuid, readErr := identityOn(ctx, device, fsType)
	if readErr != nil {
		return err
	}
	looked := map[string]bool{device: true}
	for _, m := range table {
		if m.FSType != fsType || looked[m.Source] || !strings.HasPrefix(m.Source, "/dev/") {
			continue
		}
		looked[m.Source] = true
		if other, readErr := identityOn(ctx, m.Source, fsType); readErr == nil && other == uuid {
			return &SameIdentityError{Device: device, Other: m.Source, Path: m.Path, FSType: fsType, UUID: dashed(uuid), Err: err}
		}
	}
	return err
}

func identityOn(ctx context.Context, device, fsType string) (string, error) {
	r, err := renewerOf(fsType)
	if err != nil {
		return "", err
	}
	return onPath(ctx, device, os.O_RDONLY, func(_ context.Context, file *os.File) (string, error) { return r.identity(file) })
}

// dashed writes a UUID as tools do.
func dashed(hex string) string {
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:]
}
