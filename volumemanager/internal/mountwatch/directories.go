package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// This file protects plain directories of volumes, such as those of an emptyDir on disk. A mount over or above a
// directory can show another directory at the same path.

// directory is a directory in which an operation of this manager has set a volume up. It does not change; it is
// replaced by a new one.
type directory struct {
	podvolume.Key

	path string
	seen owned.Seen
}

// enterDirectory enters a directory as the manager's own, in place of what was known at its path.
func (t *mounts) enterDirectory(own *directory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(own.path)
	if t.directories == nil {
		t.directories = make(map[string]*directory)
	}
	t.directories[own.path] = own
}

func (t *mounts) directory(path string) *directory {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.directories[path]
}

func (t *mounts) allDirectories() []*directory {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.directories))
}

func (t *mounts) isHidden(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.hidden[path]
	return is
}

// learnDirectory enters the directory at path, where nothing is mounted, as the manager's own, if it is in a pod's
// directory. A volume may also be a directory of the node: that belongs to the operator.
func (w *Watch) learnDirectory(ctx context.Context, h podvolume.Key, path string) {
	old := w.mounts.directory(path)
	w.mounts.drop(path)
	if !paths.IsAtOrBeneath(path, w.options.Host.GetPodsDir()) {
		return
	}
	seen, err := owned.See(ctx, path, safepath.Options{})
	if err != nil {
		w.options.Logger.Debug("a volume is no directory that can be watched", "volume", h.Volume, "pod", h.Pod, "path", path, "error", err)
		return
	}
	if old != nil && old.seen == seen {
		w.mounts.enterDirectory(old)
	} else {
		w.mounts.enterDirectory(&directory{Key: h, path: path, seen: seen})
	}
	w.reportMount(h, nil)
}

// check returns an error that matches mount.ErrForeign if a mount hides the directory, or if another directory is at
// its path. If the directory is gone, the error matches fs.ErrNotExist.
func (d *directory) check(ctx context.Context, kernel mountLooker) error {
	found, err := kernel.Lookup(ctx, d.path)
	switch {
	case err == nil:
		return foreignAt(d.Key, d.path, found)
	case !errors.Is(err, mount.ErrNotMounted):
		return err
	}
	err = d.seen.Check(ctx, d.path, safepath.Options{})
	if errors.Is(err, owned.ErrUnproven) {
		return fmt.Errorf("volume %q was set up in a directory that is not seen at its path any more; all was left alone: unmount what is there or above it: %w: %w",
			d.Volume, mount.ErrForeign, err)
	}
	return err
}

// checkOurDirectory returns an error if the directory at path is not the one that was set up there. A missing directory
// is no error: the plugin makes it again, or has nothing to remove.
func (g guard) checkOurDirectory(ctx context.Context, own *directory) error {
	err := own.check(ctx, g.kernel)
	if !errors.Is(err, mount.ErrForeign) {
		return nil // The plugin checks the path itself.
	}
	g.options.Health.Report(own.Key, health.Mount, []health.Condition{health.Abnormal(health.MountedOver, err)})
	return err
}

// examineDirectories checks the directories that a mount of the table covers, and those that could not be seen the last
// time. Each path of the table is a key of at.
func (w *Watch) examineDirectories(ctx context.Context, kernel mountLooker, at map[string]int) {
	pods := w.options.Host.GetPodsDir()
	for _, own := range w.mounts.allDirectories() {
		if isCovered(own.path, pods, at) || w.mounts.isHidden(own.path) {
			w.examineDirectory(ctx, kernel, own)
		}
	}
}

// isCovered reports whether something is mounted at a path, or above it as far as the directory of pods.
func isCovered(path, pods string, at map[string]int) bool {
	for ; paths.IsAtOrBeneath(path, pods); path = filepath.Dir(path) {
		if _, ok := at[path]; ok {
			return true
		}
	}
	return false
}

// examineDirectory checks a directory of the manager.
func (w *Watch) examineDirectory(ctx context.Context, kernel mountLooker, own *directory) {
	if w.mounts.isBusy(own.path) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// The mount that hides it may be removed during the check.
	w.mounts.hide(own.path)
	err := own.check(ctx, kernel)
	if w.mounts.directory(own.path) != own || w.mounts.isBusy(own.path) {
		return
	}
	switch {
	case errors.Is(err, mount.ErrForeign):
		w.options.Health.Report(own.Key, health.Mount, []health.Condition{health.Abnormal(health.MountedOver, err)})
		return
	case err == nil:
		w.reportMount(own.Key, nil)
	case errors.Is(err, fs.ErrNotExist):
		// It was removed: its content is lost, and the next set-up makes another.
	default:
		w.options.Logger.Warn("a directory could not be looked at", "path", own.path, "error", err)
	}
	w.mounts.unhide(own.path)
}
