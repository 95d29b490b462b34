package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
)

// isOnBlock reports whether a filesystem lies on a block device. Others are not waited for before they are unmounted: a
// server that hangs would keep busy what can be unmounted without it, and they tell of errors when files are closed.
func isOnBlock(found mount.MountPoint) bool {
	return found.Major != 0 || strings.HasPrefix(found.Source, "/dev/")
}

// syncBefore writes what is dirty before a mount is taken away that may be the last of its filesystem, as far as the
// operation's deadline allows: what cannot be written is lost then, and the unmount says nothing of it. A bind of a part is
// never the last, and of a volume that is staged the staging is. It returns an error when the operation was cancelled
// meanwhile: that is no loss, and nothing is to be unmounted before it is known what can be written.
func (g guard) syncBefore(ctx context.Context, own *Mount, found mount.MountPoint, intent operationexecutor.Intent) error {
	teardown := intent.Kind == operationexecutor.OpUnmountDevice || intent.Kind == operationexecutor.OpUnmount && intent.DeviceMountPath == ""
	if !teardown || found.Root != "/" || found.ReadOnly() || !isOnBlock(found) {
		return nil
	}
	err := g.syncInTime(ctx, own.path)
	switch {
	case err == nil, errors.Is(err, mount.ErrNotMounted):
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("volume %q is left mounted at %q: the teardown was cancelled before all was written: %w", own.Volume, own.path, context.Cause(ctx))
	case couldNotSync(err):
		// The unmount writes it, and does not tell how that ended.
		g.options.Logger.Warn("what was written last to a volume could not be synced before its unmount",
			"volume", own.Volume, "pod", own.Pod, "path", own.path, "error", err)
		return nil
	}
	g.options.Health.DataLost(own.Key, fmt.Errorf("data that was written may be lost: %w", err))
	return nil
}

// syncInTime writes what is dirty, in half of the time that the operation has: the other half is left for the unmount.
func (g guard) syncInTime(ctx context.Context, path string) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	return g.kernel.SyncFS(ctx, path)
}

// couldNotSync reports whether err says nothing of the data: the root of the mount could not be opened, or may not be synced.
func couldNotSync(err error) bool {
	var lost *mount.AbandonedError
	if errors.As(err, &lost) {
		return lost.Call != "syncfs"
	}
	for _, reason := range []error{mount.ErrTransient, mount.ErrUnsupported, fs.ErrPermission} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}
