package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

const (
	// everyMount is the suspect for all mounts. No path is empty.
	everyMount = ""
	// tablePause is the shortest time between two reads of the mount table, if the kernel does not report which mounts
	// have changed. A lost mount is not checked again for the same time, so a program that unmounts it again and again
	// causes little work.
	tablePause = time.Second
	// lookTimeout bounds the check of one mount, which accesses only the filesystems above the mount.
	lookTimeout = 10 * time.Second
)

// watchMounts receives the changes of the mount table until ctx ends, and finds those that concern the manager's
// mounts. While no mount changes on the node, it sleeps in the kernel.
func (w *Watch) watchMounts(ctx context.Context, kernel mountWatcher) {
	var read time.Time // when all mounts were last marked
	err := kernel.Watch(ctx, func(c mount.TableChange) {
		if c.Whole {
			retry.Pause(ctx, time.Until(read.Add(tablePause)))
			read = time.Now()
		}
		w.mountsChanged(c)
	})
	if ctx.Err() == nil {
		w.options.Logger.Error("mounts are not watched: what others do to them is found out at the resync", "error", err)
	}
}

// mountsChanged marks the manager's mounts that a change concerns, or may concern.
func (w *Watch) mountsChanged(c mount.TableChange) {
	for _, id := range c.Detached {
		w.mounts.suspectID(id, w.suspects.Add)
	}
	if len(c.Detached) > 0 {
		w.suspects.AddAll(w.mounts.allHidden())
		w.suspects.AddAll(w.options.Orphans.PathsOf(c.Detached))
	}
	if len(c.Detached) > 0 || c.Whole {
		w.options.Orphans.Changed() // One of them may be gone.
	}
	for _, mp := range c.Attached {
		w.mountAttached(mp)
	}
	// Changed options cannot be distinguished from these: the resync checks them.
	if c.Whole || c.Options && len(c.Attached)+len(c.Detached) == 0 {
		w.suspects.Add(everyMount)
	}
}

// mountAttached marks the mount below a new mount, and those that the new mount hides.
func (w *Watch) mountAttached(mp mount.MountPoint) {
	own := w.mounts.get(mp.Path)
	if own != nil && own.UniqueID != mp.UniqueID || own == nil && w.options.Orphans.MayBe(mp.Path) || w.mounts.directory(mp.Path) != nil {
		w.suspects.Add(mp.Path)
	}
	if w.isAboveVolumes(mp.Path) {
		w.suspects.Add(everyMount)
	}
}

// isAboveVolumes reports whether the mounts of several volumes are below a path: it is the root directory, above that, or
// the directory of a pod.
func (w *Watch) isAboveVolumes(path string) bool {
	pods, plugins := w.options.Host.GetPodsDir(), w.options.Host.GetPluginDir("")
	if path == "/" || paths.IsAtOrBeneath(pods, path) || paths.IsAtOrBeneath(plugins, path) {
		return true
	}
	below, ok := strings.CutPrefix(path, pods+"/")
	return ok && strings.Count(below, "/") < 3 // {pod}/volumes/{plugin}/{volume}
}

// suspectID marks the manager's mount with the unique id, unless an operation is unmounting it: then the operation's
// end shows its state.
func (t *mounts) suspectID(id uint64, suspect func(path string)) {
	if own := t.byUniqueID(id); own != nil && !t.isGoing(own) && !t.isBusy(own.path) {
		suspect(own.path)
	}
}

// Resync finds changes without an event: it checks all mounts, and whether their servers still answer.
func (w *Watch) Resync() {
	w.suspects.Add(everyMount)
	w.filesystems.resyncs.Add(1)
	for _, own := range w.mounts.all() {
		w.filesystems.add(own)
		if own.Pod != "" {
			w.options.Probe(own.Key)
		}
	}
}

// Measured checks the mount of a measured volume, and its filesystem, with the facts that the kernel has in memory.
func (w *Watch) Measured(path string) {
	if own := w.mounts.get(path); own != nil {
		w.suspects.Add(path)
		w.filesystems.add(own)
	}
}

// examineMounts checks suspects until ctx ends.
func (w *Watch) examineMounts(ctx context.Context) {
	for {
		path, ok := w.suspects.Get(ctx)
		if !ok {
			return
		}
		if path == everyMount {
			w.ExamineAll(ctx)
			continue
		}
		w.Examine(ctx, path)
	}
}

// ExamineAll compares all of the manager's mounts, and the mounts without a record, with the mount table.
func (w *Watch) ExamineAll(ctx context.Context) {
	kernel := w.kernel
	all := w.mounts.all()
	if len(all) == 0 && len(w.mounts.allDirectories()) == 0 && !w.options.Records {
		return
	}
	table, err := kernel.List(ctx)
	if err != nil {
		w.options.Logger.Warn("the mount table could not be compared with the known mounts", "error", err)
		return
	}
	at, covers := make(map[string]int, len(table)), []int(nil)
	for i := range table {
		at[table[i].Path] = i
		if w.isAboveVolumes(table[i].Path) {
			covers = append(covers, i)
		}
	}
	for _, own := range all {
		i, ok := at[own.path]
		hidden := slices.ContainsFunc(covers, func(c int) bool { return c > i && paths.IsAtOrBeneath(own.path, table[c].Path) })
		if ok && !hidden && own.Expect().Is(table[i]) {
			w.assessNow(own, table[i])
			continue
		}
		w.Examine(ctx, own.path)
	}
	w.examineDirectories(ctx, kernel, at)
	w.options.Orphans.ExamineUnknown(ctx, at)
}

// Examine checks the mount at a path.
func (w *Watch) Examine(ctx context.Context, path string) {
	kernel := w.kernel
	if dir := w.mounts.directory(path); dir != nil {
		w.examineDirectory(ctx, kernel, dir)
		return
	}
	own := w.mounts.get(path)
	if own == nil {
		w.options.Orphans.Examine(ctx, path)
		return
	}
	if w.mounts.isBusy(path) {
		return
	}
	if again := own.lost.Add(tablePause); time.Now().Before(again) {
		w.suspects.AddAt(path, again)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// The mount that hides it may be removed during the check.
	w.mounts.hide(path)
	found, err := kernel.Lookup(ctx, path)
	if err == nil && !own.Expect().Is(found) {
		err = foreignOn(own, found)
	} else if errors.Is(err, mount.ErrNotMounted) {
		if elsewhere := displaced(ctx, kernel, own); elsewhere != nil {
			err = elsewhere
		}
	}
	if errors.Is(err, mount.ErrForeign) {
		w.reportDisplaced(own.Key, err)
		return
	}
	w.mounts.unhide(path)
	switch {
	case err == nil:
		w.assessNow(own, found)
	case errors.Is(err, mount.ErrNotMounted):
		w.lost(own)
	default:
		w.options.Logger.Warn("a mount could not be looked at", "path", path, "error", err)
	}
}

// assessNow assesses a mount, unless an operation has begun to change it since the check.
func (w *Watch) assessNow(own *Mount, found mount.MountPoint) {
	if w.mounts.get(own.path) == own && !w.mounts.isBusy(own.path) {
		w.assess(own, found)
	}
}

// assess returns the conditions of a mount of the manager.
func (w *Watch) assess(own *Mount, found mount.MountPoint) {
	var now []health.Condition
	if flags := strings.Join(found.Options, ","); flags != own.flags.Value() {
		err := fmt.Errorf("it was mounted %s and another program has remounted it %s", own.flags.Value(), flags)
		now = append(now, health.Degraded(health.FlagsChanged, err))
	}
	switch {
	case slices.Contains(found.SuperOptions, "shutdown"):
		now = append(now, health.Abnormal(health.FilesystemShutDown, errShutDown))
	case slices.Contains(found.SuperOptions, "emergency_ro"):
		now = append(now, health.Abnormal(health.FilesystemReadOnly, errEmergency))
	case IsReadOnly(found) && !own.readOnly:
		now = append(now, health.Abnormal(health.FilesystemReadOnly, errReadOnly))
	}
	w.reportMount(own.Key, now)
}

// reportMount reports all conditions of a visible mount or directory of the manager. If it could not be seen before,
// the refused operations are retried.
func (w *Watch) reportMount(h podvolume.Key, now []health.Condition) {
	was := w.options.Health.Of(h)
	w.options.Health.Report(h, health.Mount, now)
	if slices.ContainsFunc(was, func(c health.Condition) bool { return c.Reason == health.MountedOver || c.Reason == health.Moved }) {
		w.options.Retry(h)
	}
}

// The faults that a filesystem's options show.
var (
	errShutDown  = errors.New("its filesystem was shut down, after an error or by hand: every use of it fails")
	errEmergency = errors.New("its filesystem has found an error and is read-only since: data that was written may be lost")
	errReadOnly  = errors.New("its filesystem has become read-only")
)

// HasFailed reports whether a filesystem says that it was shut down, or that it became read-only after an error.
func HasFailed(found mount.MountPoint) bool {
	return slices.Contains(found.SuperOptions, "shutdown") || slices.Contains(found.SuperOptions, "emergency_ro")
}

// IsReadOnly reports whether the filesystem of a mount is read-only.
func IsReadOnly(found mount.MountPoint) bool { return slices.Contains(found.SuperOptions, "ro") }

// lost marks a missing mount of the manager as uncertain. It is then set up again if a pod needs it.
func (w *Watch) lost(own *Mount) {
	if w.mounts.get(own.path) != own || w.mounts.isBusy(own.path) {
		return
	}
	err := fmt.Errorf("another program has unmounted it from %q: %w", own.path, mount.ErrNotMounted)
	if !w.options.MarkUncertain(own.Key) {
		return
	}
	gone := *own
	gone.lost = time.Now()
	w.mounts.enter(&gone)
	w.options.Health.Report(own.Key, health.Mount, []health.Condition{health.Abnormal(health.Unmounted, err)})
	w.options.Plan(own.Key)
}
