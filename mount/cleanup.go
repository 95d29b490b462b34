package mount

import (
	"context"
	"errors"
	"fmt"
)

// UnmountPath takes off everything that is mounted at path and removes the mount point: what a plugin's TearDownAt does.
// It is idempotent: a path that is not mounted is only removed, and one that does not exist is no error. Whether it is
// mounted is asked of the mount table, never concluded from a path that cannot be found (a mounted path can say so). The
// content of the path is never deleted: when the directory is not empty, the error matches unix.ENOTEMPTY. An error that
// comes after something was unmounted matches [ErrUncertain], since a part is done.
func UnmountPath(ctx context.Context, m Interface, path string, options UnmountOptions) error {
	return UnmountMountPoint(ctx, m, path, UnmountMountPointOptions{Unmount: options})
}

// UnmountMountPointOptions says how to clean up. The zero value makes a plain unmount and removes the mount point.
type UnmountMountPointOptions struct {
	// Unmount says how hard to try.
	Unmount UnmountOptions
	// KeepTarget leaves the mount point, empty, where it is.
	KeepTarget bool
}

// UnmountMountPoint is [UnmountPath] with more options. Kubernetes' function of this name takes a flag for a more
// careful check in place of options; here the careful check is the only one.
func UnmountMountPoint(ctx context.Context, m Interface, path string, options UnmountMountPointOptions) error {
	err := m.Unmount(ctx, path, options.Unmount)
	if err != nil && !errors.Is(err, ErrNotMounted) {
		return err
	}
	if options.KeepTarget {
		return nil
	}
	removeErr := m.RemoveTarget(ctx, path)
	if removeErr != nil && err == nil {
		return fmt.Errorf("%w: %q is unmounted, but it is still there: %w", ErrUncertain, path, removeErr)
	}
	return removeErr
}
