package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// kernelMounts is what the manager uses of [Options].Mounts when it has all of it, as a *mount.Mounter does.
type kernelMounts interface {
	mountLooker
	mountWatcher
	mountEnder
}

type mountLooker interface {
	Lookup(ctx context.Context, path string) (mount.MountPoint, error)
	LookupID(ctx context.Context, uniqueID uint64) (mount.MountPoint, error)
	List(ctx context.Context) ([]mount.MountPoint, error)
}

type mountWatcher interface {
	Watch(ctx context.Context, changed func(mount.Change)) error
}

type mountEnder interface {
	SyncFS(ctx context.Context, target string) error
	UnmountHung(ctx context.Context, target string, options mount.UnmountOptions) error
}

var _ kernelMounts = (*mount.Mounter)(nil)

// guard is the executor's journal that knows which mounts are ours: it learns of each when it is made, refuses what would be
// done to a mount of somebody else, and writes what is dirty before the last mount of a filesystem goes.
type guard struct {
	*Manager
	kernel kernelMounts
	// inner is the journal on disk; nil when there is none.
	inner operationexecutor.Journal
}

var _ operationexecutor.Journal = guard{}

// guarded returns inner, or nil, with what [Options].Mounts makes possible.
func (m *Manager) guarded(inner operationexecutor.Journal) operationexecutor.Journal {
	kernel, ok := m.options.Mounts.(kernelMounts)
	if !ok {
		return inner
	}
	return guard{Manager: m, kernel: kernel, inner: inner}
}

// Intend implements [operationexecutor.Journal]. The error matches [mount.ErrForeign] when another mount than ours would be
// changed or hidden.
func (g guard) Intend(ctx context.Context, intent operationexecutor.Intent) error {
	path := mountPathOf(intent)
	if path == "" {
		return g.intend(ctx, intent)
	}
	g.mounts.begin(path)
	err := g.checkOurs(ctx, path, intent)
	if err == nil {
		err = g.intend(ctx, intent)
	}
	if err != nil {
		g.ended(path)
	}
	return err
}

func (g guard) intend(ctx context.Context, intent operationexecutor.Intent) error {
	if g.inner == nil {
		return nil
	}
	return g.inner.Intend(ctx, intent)
}

// Conclude implements [operationexecutor.Journal].
func (g guard) Conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	var err error
	if g.inner != nil {
		err = g.inner.Conclude(ctx, intent, end)
	}
	path := mountPathOf(intent)
	if path == "" {
		return err
	}
	switch end {
	case operationexecutor.IntentDone:
		g.learn(ctx, path, intent)
	case operationexecutor.IntentForgotten:
		g.mounts.drop(path)
		g.health.forget(holderOf(intent))
	case operationexecutor.IntentUncertain:
		g.suspects.Add(path) // it failed, perhaps since something is wrong with the filesystem
	}
	g.ended(path)
	return err
}

// ended looks at what there was news of while an operation was under way.
func (g guard) ended(path string) {
	if g.mounts.end(path) {
		g.suspects.Add(path)
	}
}

// learn takes what is mounted at path now as ours.
func (g guard) learn(ctx context.Context, path string, intent operationexecutor.Intent) {
	found, err := g.kernel.Lookup(ctx, path)
	if err != nil {
		g.mounts.drop(path) // not every volume is a mount
		return
	}
	old := g.mounts.get(path)
	own := newOwnMount(holderOf(intent), path, found)
	switch {
	case old != nil && old.uniqueID == own.uniqueID && own.uniqueID != 0:
		own = old // only refreshed: its flags should still be those that it had
	case old != nil:
		own.lost = old.lost
	}
	g.mounts.enter(own)
	g.assess(own, found)
}

// checkOurs refuses when what is uppermost at path is not the mount that we made there.
func (g guard) checkOurs(ctx context.Context, path string, intent operationexecutor.Intent) error {
	own := g.mounts.get(path)
	if own == nil {
		return nil
	}
	found, err := g.kernel.Lookup(ctx, path)
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		err = hidden(ctx, g.kernel, own)
	case err != nil:
		return nil //nolint:nilerr // Nobody can say; the plugin looks for itself.
	case own.expect().Is(found):
		g.syncBefore(ctx, own, found, intent)
		return nil
	default:
		err = foreignOn(own, found)
	}
	if err != nil {
		g.report(own.holder, sourceMount, []Condition{abnormal(ReasonMountedOver, err)})
	}
	return err
}

// hidden returns an error when a mount of ours that cannot be seen at its path is there all the same, hidden by another.
func hidden(ctx context.Context, kernel mountLooker, own *ownMount) error {
	if own.uniqueID == 0 {
		return nil
	}
	found, err := kernel.LookupID(ctx, own.uniqueID)
	if err != nil || found.Path != own.path {
		return nil //nolint:nilerr // It has gone, or was moved away.
	}
	return fmt.Errorf("what is mounted at %q is hidden: somebody has mounted above it; it was left alone: %w", own.path, mount.ErrForeign)
}

func foreignOn(own *ownMount, found mount.MountPoint) error {
	return fmt.Errorf("somebody has mounted %s %q at %q, where volume %q is; all was left alone: unmount that: %w",
		found.FSType, found.Source, own.path, own.volume, mount.ErrForeign)
}

// mountPathOf returns the path of the mount that an intent is about; empty when it is about none.
func mountPathOf(intent operationexecutor.Intent) string {
	switch intent.Kind {
	case operationexecutor.OpMount, operationexecutor.OpUnmount, operationexecutor.OpUnmountDevice:
		if intent.PodUID != "" && intent.MountPath != "" {
			return intent.MountPath
		}
		return intent.DeviceMountPath
	case operationexecutor.OpMap, operationexecutor.OpUnmap:
		if intent.PodUID != "" && intent.DeviceMountPath != "" {
			return filepath.Join(intent.DeviceMountPath, string(intent.PodUID))
		}
		return ""
	default:
		return ""
	}
}

func holderOf(intent operationexecutor.Intent) holder {
	return holder{volume: intent.VolumeName, pod: volume.UniquePodName(intent.PodUID)}
}
