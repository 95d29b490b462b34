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

// This file keeps plain directories of volumes, such as those of an emptyDir on disk, from being taken for others that a mount
// over them, or above them, shows at the same path.

// directory is a directory in which an operation of this manager has set a volume up. It does not change; a new one takes
// its place.
type directory struct {
	podvolume.Key

	path string
	seen owned.Seen
}

// enterDirectory takes a directory as ours in place of what was known at its path.
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

// learnDirectory takes the directory at path, where nothing is mounted, as ours, if it lies in that of a pod: a volume may also be
// a directory of the node, which is its operator's.
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
	w.tellOfMount(h, nil)
}

// check returns an error that matches mount.ErrForeign when the directory cannot be seen at its path because of a mount, or
// another one is there, and an error that matches fs.ErrNotExist when it is gone.
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

// checkOurDirectory refuses when what is at path is not the directory that was set up there. One that is gone is no reason: the
// plugin makes it anew, or has nothing to take away.
func (g guard) checkOurDirectory(ctx context.Context, own *directory) error {
	err := own.check(ctx, g.kernel)
	if !errors.Is(err, mount.ErrForeign) {
		return nil // The plugin looks for itself.
	}
	g.options.Health.Report(own.Key, health.Mount, []health.Condition{health.Abnormal(health.MountedOver, err)})
	return err
}

// examineDirectories looks at the directories that a mount of the table covers, or that could not be seen the last time. Each
// path of the table is a key of at.
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

// examineDirectory looks at a directory of ours.
func (w *Watch) examineDirectory(ctx context.Context, kernel mountLooker, own *directory) {
	if w.mounts.isBusy(own.path) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// What hides it may go while it is looked at.
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
		w.tellOfMount(own.Key, nil)
	case errors.Is(err, fs.ErrNotExist):
		// It was removed: its content is lost, and the next set-up makes another.
	default:
		w.options.Logger.Warn("a directory could not be looked at", "path", own.path, "error", err)
	}
	w.mounts.unhide(own.path)
}
