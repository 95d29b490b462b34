package mountwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// guard is the executor's journal with checks of mounts. It records each mount when it is made, refuses operations on
// foreign mounts, and writes dirty data before the last mount of a filesystem is removed.
type guard struct {
	*Watch
	// inner is the journal on disk; nil if there is none.
	inner operationexecutor.Journal
}

var (
	_ operationexecutor.Journal     = guard{}
	_ operationexecutor.CallWatcher = guard{}
	_ operationexecutor.RootChecker = guard{}
)

// Guard returns inner, which may be nil, guarded by this watch. If the mounter cannot list mounts it returns inner itself.
func (w *Watch) Guard(inner operationexecutor.Journal) operationexecutor.Journal {
	if w.kernel == nil {
		return inner
	}
	return guard{Watch: w, inner: inner}
}

// Intend implements [operationexecutor.Journal]. The error matches [mount.ErrForeign] if the operation would change or hide
// a foreign mount.
func (g guard) Intend(ctx context.Context, intent operationexecutor.Intent) error {
	path := PathOf(intent)
	if path == "" {
		return g.intend(ctx, intent)
	}
	g.mounts.begin(path)
	g.mounts.resetTeardown(holderOf(intent))
	err := g.checkOurs(ctx, path, intent)
	if err == nil {
		g.findStrayFiles(ctx, path, intent)
		err = g.intend(ctx, intent)
	}
	if own := g.mounts.get(path); err == nil && own != nil && isTeardown(intent) {
		g.mounts.leave(own)
	}
	if err != nil {
		g.ended(path)
	}
	if errors.Is(err, mount.ErrForeign) {
		g.suspects.Add(path) // and then at each unmount
	}
	return err
}

func (g guard) intend(ctx context.Context, intent operationexecutor.Intent) error {
	if g.inner == nil {
		return g.options.CheckRoot(ctx) // The journal on disk checks it, too.
	}
	return g.inner.Intend(ctx, intent)
}

// CheckRoot implements [operationexecutor.RootChecker].
func (g guard) CheckRoot(ctx context.Context) error { return g.options.CheckRoot(ctx) }

// CallContext implements [operationexecutor.CallWatcher]. A mount that the call reports belongs to the manager,
// whatever is the uppermost mount when the call returns. This also holds for a call that returns after it was
// abandoned. If the call reports that it has removed the directory, nothing is mounted there.
func (g guard) CallContext(ctx context.Context, intent operationexecutor.Intent) context.Context {
	path := PathOf(intent)
	if isTeardown(intent) {
		return mount.WithRemoved(ctx, func(target string) {
			if target == path {
				g.mounts.remove(path)
			}
		})
	}
	return mount.WithMade(ctx, func(target string, found mount.MountPoint) {
		if target == path {
			g.mounts.enterReported(NewMount(holderOf(intent), path, found))
		}
	})
}

// Conclude implements [operationexecutor.Journal].
func (g guard) Conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	path := PathOf(intent)
	if path == "" {
		return g.conclude(ctx, intent, end)
	}
	if end == operationexecutor.IntentDone && intent.Kind == operationexecutor.OpMap {
		g.learn(ctx, g.kernel, holderOf(intent), path) // It is recorded, too.
	}
	err := g.conclude(ctx, intent, end)
	switch end {
	case operationexecutor.IntentDone:
		g.reportStrayFiles(path, intent)
		if isTeardown(intent) {
			g.suspects.Add(path) // the state has it, but it may be gone
		}
	case operationexecutor.IntentForgotten:
		g.reportKept(path, intent)
		if !isTeardown(intent) {
			g.suspectVolume(intent.VolumeName) // another pod's mount of the volume may be the reason of the failure
		}
		g.mounts.drop(path)
		g.mounts.resetTeardown(holderOf(intent))
		g.options.Health.Forget(holderOf(intent))
	case operationexecutor.IntentUncertain:
		g.suspects.Add(path) // it failed, perhaps because of a fault of the filesystem
	}
	g.ended(path)
	return err
}

func (g guard) conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	if g.inner == nil {
		return nil
	}
	return g.inner.Conclude(ctx, intent, end)
}

// suspectVolume marks all mounts of a volume to be checked.
func (w *Watch) suspectVolume(name v1.UniqueVolumeName) {
	for _, own := range w.mounts.all() {
		if own.Volume == name {
			w.suspects.Add(own.path)
		}
	}
}

// ended checks the changes that came during an operation, and the filesystem that the operation may have mounted.
func (g guard) ended(path string) {
	if g.mounts.end(path) {
		g.suspects.Add(path)
	}
	if own := g.mounts.get(path); own != nil {
		g.filesystems.add(own)
	}
}

// Made records a mount before the callers that wait for it wake: they may use or replace it at once.
func (w *Watch) Made(h podvolume.Key, path string) {
	if w.kernel == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) //nolint:forbidigo // The port has no context.
	defer cancel()
	w.learn(ctx, w.kernel, h, path)
}

// mountPoints reports mounts to the executor. If it sees the mount of a running operation, guard needs no second lookup.
type mountPoints struct {
	*mounts
	kernel mountLooker
}

var _ operationexecutor.PromptMountPoints = mountPoints{}

// ReturnsInTime implements [operationexecutor.PromptMountPoints]: a lookup is abandoned when its context ends.
func (mountPoints) ReturnsInTime() {}

// IsMountPoint implements [operationexecutor.MountPoints].
func (l mountPoints) IsMountPoint(ctx context.Context, path string) (bool, error) {
	if l.isRemoved(path) {
		return false, nil
	}
	found, err := l.kernel.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.keep(path, found)
	return true, nil
}

// MountPoints returns inner for the executor, and keeps the mounts that it sees for guard.
func (w *Watch) MountPoints(inner operationexecutor.MountPoints) operationexecutor.MountPoints {
	if w.kernel == nil {
		return inner
	}
	return mountPoints{mounts: &w.mounts, kernel: w.kernel}
}

// learn enters the present mount at path as the manager's own.
func (w *Watch) learn(ctx context.Context, kernel mountLooker, h podvolume.Key, path string) {
	found, err := w.mounts.lookup(path, func() (mount.MountPoint, error) { return kernel.Lookup(ctx, path) })
	if own := w.mounts.get(path); own != nil && own.reported && (err != nil || !own.Expect().Is(found)) {
		w.suspects.Add(path) // The plugin reports its mounts, and this is another one.
		return
	}
	if errors.Is(err, mount.ErrNotMounted) && h.Pod != "" {
		w.learnDirectory(ctx, h, path) // not every volume is a mount
		return
	}
	if err != nil {
		w.mounts.drop(path)
		return
	}
	old, own := w.mounts.get(path), NewMount(h, path, found)
	switch {
	case old != nil && old.UniqueID == own.UniqueID && own.UniqueID != 0 && !old.underway:
		own = old // only refreshed: its flags must not change
	case old != nil:
		own.lost, own.reported = old.lost, old.reported
	}
	w.mounts.enter(own)
	w.assess(own, found)
	if HasFailed(found) {
		w.suspects.Add(everyMount) // No event reports it: its other mounts are not known to have failed.
	}
}

// checkOurs returns an error if the uppermost mount at path is not the one that the manager made there.
func (g guard) checkOurs(ctx context.Context, path string, intent operationexecutor.Intent) error {
	if dir := g.mounts.directory(path); dir != nil {
		return g.checkOurDirectory(ctx, dir)
	}
	own := g.mounts.get(path)
	if own == nil && !g.options.HungUnmount.isSet() {
		return nil
	}
	found, err := g.kernel.Lookup(ctx, path)
	switch {
	case own == nil:
		if err == nil && isTeardown(intent) { // It is recorded, and a teardown would unmount it in any case.
			g.mounts.enter(NewMount(holderOf(intent), path, found))
		}
		return nil
	case errors.Is(err, mount.ErrNotMounted):
		err = displaced(ctx, g.kernel, own)
	case err != nil:
		return nil //nolint:nilerr // The state is unknown; the plugin checks the path itself.
	case own.Expect().Is(found):
		return g.syncBefore(ctx, own, found, intent)
	default:
		err = foreignOn(own, found)
	}
	if err != nil {
		g.reportDisplaced(own.Key, err)
	}
	return err
}

// CheckVisible returns an error if a volume is set up at path, and its mount or directory is not seen there. The error matches
// [mount.ErrForeign] if another one is seen or the mount was moved, and [mount.ErrNotMounted] if the mount is gone.
func (w *Watch) CheckVisible(ctx context.Context, path string) error {
	if dir := w.mounts.directory(path); dir != nil {
		if err := dir.check(ctx, w.kernel); errors.Is(err, mount.ErrForeign) {
			return err
		}
		return nil // A missing directory hides nothing: who uses it finds that out.
	}
	own := w.mounts.get(path)
	if own == nil {
		return nil
	}
	found, err := w.kernel.Lookup(ctx, path)
	switch {
	case err == nil && !own.Expect().Is(found):
		return foreignOn(own, found)
	case errors.Is(err, mount.ErrNotMounted):
		return cmp.Or(displaced(ctx, w.kernel, own), err)
	}
	return err
}

// errMoved says that a mount was moved.
var errMoved = fmt.Errorf("moved, or %w", mount.ErrForeign)

// displaced returns an error if a mount of the manager exists but is not seen at its path: another mount hides it, or it was
// moved.
func displaced(ctx context.Context, kernel mountLooker, own *Mount) error {
	if own.UniqueID == 0 {
		return nil
	}
	found, err := kernel.LookupID(ctx, own.UniqueID)
	switch {
	case err != nil:
		return nil //nolint:nilerr // It was unmounted.
	case found.Path != own.path:
		return fmt.Errorf("what was mounted at %q is at %q now: another program has moved it, or a directory above it: move it back: %w",
			own.path, found.Path, errMoved)
	}
	return fmt.Errorf("what is mounted at %q is hidden: another program has mounted above it; it was left alone: unmount that: %w", own.path, mount.ErrForeign)
}

// reportDisplaced reports why a mount or directory of the manager is not seen at its path.
func (w *Watch) reportDisplaced(h podvolume.Key, err error) {
	reason := health.MountedOver
	if errors.Is(err, errMoved) {
		reason = health.Moved
	}
	w.options.Health.Report(h, health.Mount, []health.Condition{health.Abnormal(reason, err)})
}

func foreignOn(own *Mount, found mount.MountPoint) error {
	return foreignAt(own.Key, own.path, found)
}

func foreignAt(h podvolume.Key, path string, found mount.MountPoint) error {
	return fmt.Errorf("another program has mounted %s %q at %q, where volume %q is; all was left alone: unmount that: %w",
		found.FSType, found.Source, path, h.Volume, mount.ErrForeign)
}

// PathOf returns the mount path of an intent; empty if it has none.
func PathOf(intent operationexecutor.Intent) string {
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

func isTeardown(intent operationexecutor.Intent) bool {
	return isTeardownOf(intent.Kind)
}

func holderOf(intent operationexecutor.Intent) podvolume.Key {
	return podvolume.Key{Volume: intent.VolumeName, Pod: volume.UniquePodName(intent.PodUID)}
}
