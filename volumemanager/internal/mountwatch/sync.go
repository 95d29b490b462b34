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

// isOnBlock reports whether a filesystem lies on a block device. Only these are synced before an unmount. A network
// filesystem reports write errors when files are closed; and a sync to a hung server would block an unmount that can do
// without the server.
func isOnBlock(found mount.MountPoint) bool {
	return found.Major != 0 || strings.HasPrefix(found.Source, "/dev/")
}

// syncBefore writes the dirty data of a filesystem before an operation takes off what may be its last mount. It has to: an
// unmount does not report data that it could not write. A bind of a part of a volume is never the last mount; of a staged
// volume the staging is. syncBefore respects the operation's deadline, and reports data that cannot be written as lost. If
// the operation was cancelled meanwhile it returns an error: no data is lost, and the mount stays until it is known what can
// be written.
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
		// The unmount writes the data, but does not report whether that succeeded.
		g.options.Logger.Warn("what was written last to a volume could not be synced before its unmount",
			"volume", own.Volume, "pod", own.Pod, "path", own.path, "error", err)
		return nil
	}
	g.options.Health.DataLost(own.Key, fmt.Errorf("data that was written may be lost: %w", err))
	return nil
}

// syncInTime writes dirty data within half of the operation's remaining time. The other half is for the unmount.
func (g guard) syncInTime(ctx context.Context, path string) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	return g.kernel.SyncFS(ctx, path)
}

// couldNotSync reports whether err says nothing about the data: the root of the mount could not be opened, or cannot be
// synced.
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
