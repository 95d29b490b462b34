package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// orphanRemover is what removes the mounts of orphans; a [*mount.Mounter] is one.
type orphanRemover interface {
	Unmount(ctx context.Context, target string, options mount.UnmountOptions) error
	RemoveTarget(ctx context.Context, path string) error
}

// Remove removes what it can and returns the rest, in the same order. What lies deeper goes first.
func (l *List) Remove(ctx context.Context, orphans []Orphan) []Orphan {
	var rest []Orphan
	for _, o := range slices.Backward(orphans) {
		if o.emptyPod {
			continue // It goes last.
		}
		if ctx.Err() != nil || o.PodUID != "" && l.options.IsKnown(volume.UniquePodName(o.PodUID)) {
			rest = append(rest, o)
			continue
		}
		if o.Err = l.removeOne(ctx, o); o.Err != nil {
			rest = append(rest, o)
		}
	}
	slices.Reverse(rest)
	return rest
}

// isInUse reports whether an orphan is a mount that could not be removed because it was in use. A lookup of the mount, or a
// process that is ending, can use it for a moment.
func (o Orphan) isInUse() bool { return o.Mounted && errors.Is(o.Err, syscall.EBUSY) }

// HasInUse reports whether an orphan could not be removed because it was in use.
func (l *List) HasInUse() bool { return slices.ContainsFunc(l.All(), Orphan.isInUse) }

// RemoveInUse tries to remove those again that were in use.
func (l *List) RemoveInUse(ctx context.Context) {
	inUse := slices.DeleteFunc(slices.Clone(l.All()), func(o Orphan) bool { return !o.isInUse() })
	rest := l.Remove(ctx, inUse)
	l.replace(inUse, rest)
	l.replace(nil, l.RemoveEmptyPods(ctx, inUse, l.All()))
	l.notifyPods(inUse)
}

// replace takes out of the list what was removed, and puts in what is left of it.
func (l *List) replace(removed, rest []Orphan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(l.all), func(o Orphan) bool { // Others read the list that was reported.
		return slices.ContainsFunc(removed, func(r Orphan) bool { return r.Path == o.Path && r.Identity == o.Identity })
	})
	l.all = append(all, rest...)
	slices.SortFunc(l.all, byPath)
}

// removeOne removes an orphan of whatever kind.
func (l *List) removeOne(ctx context.Context, o Orphan) error {
	if err := l.options.CheckRoot(ctx); err != nil {
		return err
	}
	if o.BackingFile != "" {
		return l.removeDevice(ctx, o)
	}
	if err := l.checkPlace(o); err != nil {
		return err
	}
	if o.Dir.Block {
		return l.removeMapping(ctx, o)
	}
	return l.removeOrphan(ctx, o)
}

// removeOrphan removes a mount by a plain unmount of that very mount, and its directory, or the directory, by rmdir. No
// operation uses the path meanwhile: an intent there waits.
func (l *List) removeOrphan(ctx context.Context, o Orphan) error {
	release, ok := l.options.Records.Claim(o.Path, func() bool { return !l.options.Records.IsRecorded(o.Path) })
	if !ok {
		return nil // It has become a volume.
	}
	defer release()
	remove := func(context.Context, string) error { return rmdir(o.Path) }
	if o.Mounted {
		remover, ok := l.options.Mounter.(orphanRemover)
		if !ok {
			return fmt.Errorf("mount at %q cannot be taken off by what Options.Mounter is: %w", o.Path, volume.ErrUnsupported)
		}
		err := remover.Unmount(ctx, o.Path, mount.UnmountOptions{Expect: o.Identity})
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			return err
		}
		remove = remover.RemoveTarget
	}
	if err := remove(ctx, o.Path); err != nil && !isMissing(err) {
		return fmt.Errorf("directory %q, of which nothing is on record, stays: %w", o.Path, err)
	}
	l.options.Logger.Info("an orphan was removed", "path", o.Path, "mounted", o.Mounted)
	return nil
}
