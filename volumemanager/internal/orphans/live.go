package orphans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// This file handles orphans that are volumes: a mount, or the link to a device, at the path of a volume that could not be
// rebuilt. While there is one, no wait reports that all volumes are gone.

// Live returns the orphans that are volumes, as far as the manager can tell, and are still there.
func (l *List) Live(ctx context.Context) []Orphan {
	l.mu.Lock()
	orphans := l.all // It is replaced, never changed.
	l.mu.Unlock()
	var live []Orphan
	for _, o := range orphans {
		if (o.Mounted || o.Dir.Block) && l.checkPlace(o) == nil && !l.options.Records.IsRecorded(o.Path) && (l.options.Records.IsRemoving(o.Path) || l.isThere(ctx, o)) {
			live = append(live, o)
		}
	}
	return live
}

// LiveOf returns the live orphans of one pod: in the pod's directory, or bound for the pod in a plugin's directory.
func (l *List) LiveOf(ctx context.Context, uid types.UID) []Orphan {
	var live []Orphan
	for _, o := range l.Live(ctx) {
		if o.PodUID == uid || o.PodUID == "" && filepath.Base(o.Path) == string(uid) {
			live = append(live, o)
		}
	}
	return live
}

// isThere reports whether an orphan is still there. If the lookup fails, the orphan counts as there.
func (l *List) isThere(ctx context.Context, o Orphan) bool {
	if !o.Mounted {
		_, err := os.Lstat(o.Path)
		return !isMissing(err)
	}
	table := l.options.Table
	if table == nil {
		return true
	}
	found, err := table.Lookup(context.WithoutCancel(ctx), o.Path) // It never waits for the filesystem.
	if errors.Is(err, mount.ErrNotMounted) {
		return false
	}
	return err != nil || o.Identity.Is(found)
}

// removeMapping removes a pod's link to a device, the bind to which the link leads, and the lock of the device. If that was
// the last bind, it also removes the directory of the binds. Meanwhile no operation uses the link: an intent for its path
// waits.
func (l *List) removeMapping(ctx context.Context, o Orphan) error {
	release, ok := l.options.Records.Claim(o.Path, func() bool { return !l.options.Records.IsRecorded(o.Path) })
	if !ok {
		return nil // It has become a volume.
	}
	defer release()
	bind, err := os.Readlink(o.Path)
	if isMissing(err) {
		return nil
	}
	binds := filepath.Dir(bind)
	if err != nil || filepath.Base(bind) != string(o.PodUID) || paths.DepthBelow(bind, l.options.Plugins.Host().GetVolumeDevicePluginDir(o.Dir.Plugin)) != 2 {
		return errors.Join(err, fmt.Errorf("%q stays, since it is no link to a device of pod %q: remove it if it is not needed: %w", o.Path, o.PodUID, mount.ErrForeign))
	}
	if l.options.Records.IsRecorded(bind) {
		return nil // as above
	}
	d := operationexecutor.DeviceMapping{GlobalMapPath: binds, PodMapDir: filepath.Dir(o.Path), LinkName: filepath.Base(o.Path), PodUID: o.PodUID}
	if err := l.options.BlockMapper.UnmapDevice(ctx, d); err != nil {
		return fmt.Errorf("link %q to a device, of which nothing is on record, stays: %w", o.Path, err)
	}
	l.removeEmptyDir(binds)
	l.options.Logger.Info("a device that was mapped, and of which nothing was on record, was unmapped", "path", o.Path, "bind", bind)
	return nil
}
