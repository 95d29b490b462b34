package orphans

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// This file deals with the directories of pods in which no volume is left: a manager that was killed leaves them, empty and on
// no record.

// podKinds are the directories in that of a pod which are the manager's, with how deep those below are empty when no volume is
// left.
var podKinds = map[string]int{volumesDir: 1, "volumeDevices": 1, pluginsDir: 1, safepath.SubpathsDir: 3}

const volumesDir, pluginsDir = "volumes", "plugins"

// EmptyPods returns the directories of unknown pods that hold no volume and have had no record since the start. A directory
// with foreign content only is not one of them.
func (l *List) EmptyPods(dirs []Dir, recorded map[string]struct{}, table []mount.MountPoint) ([]Orphan, error) {
	pods := l.options.Plugins.Host().GetPodsDir()
	uids, err := NamesIn(pods)
	hasVolume := make(map[types.UID]bool)
	for _, d := range dirs {
		hasVolume[d.UID] = true
	}
	used, mounted := paths.WithParents(maps.Keys(recorded)), paths.WithParents(pathsOfTable(table))
	var empty []Orphan
	for _, uid := range uids {
		o := Orphan{Path: filepath.Join(pods, uid), PodUID: types.UID(uid), emptyPod: true}
		_, isUsed := used[o.Path]
		_, hasVolumes := used[containers.PartsOf(o.PodUID, "")] // which may be paths of the host
		_, isMounted := mounted[o.Path]
		if !hasVolume[o.PodUID] && !isUsed && !hasVolumes && !isMounted && !l.options.IsKnown(volume.UniquePodName(uid)) && isOfManager(o.Path) {
			empty = append(empty, o)
		}
	}
	return empty, err
}

// pathsOfTable yields the paths of a mount table.
func pathsOfTable(table []mount.MountPoint) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range table {
			if !yield(table[i].Path) {
				return
			}
		}
	}
}

// isOfManager reports whether the directory of a pod holds one that a manager makes, or nothing at all.
func isOfManager(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && (len(entries) == 0 || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		_, is := podKinds[e.Name()]
		return is && e.IsDir()
	}))
}

// RemoveEmptyPods removes the empty directories of the pods in whose directories orphans were, and returns those that stay.
func (l *List) RemoveEmptyPods(ctx context.Context, orphans, rest []Orphan) []Orphan {
	told := make(map[types.UID]bool)
	for _, o := range rest {
		told[o.PodUID] = true
	}
	var stay []Orphan
	for _, o := range orphans {
		if o.PodUID == "" || told[o.PodUID] {
			continue // The orphan in that directory is reported already.
		}
		told[o.PodUID] = true
		dir := filepath.Join(l.options.Plugins.Host().GetPodsDir(), string(o.PodUID))
		if ctx.Err() != nil || l.options.CheckRoot(ctx) != nil || l.options.IsKnown(volume.UniquePodName(o.PodUID)) || l.options.Records.IsRecorded(dir) {
			continue
		}
		l.removeEmptyPod(o.PodUID)
		if _, err := os.Lstat(dir); err == nil {
			err = fmt.Errorf("directory %q of a pod that is not here stays, since something else is in it: remove it if it is not needed: %w", dir, volume.ErrInUse)
			stay = append(stay, Orphan{Path: dir, PodUID: o.PodUID, Err: err, emptyPod: true})
		}
	}
	return stay
}

// removeEmptyPod removes what a manager has made in the directory of a pod, and that, as far as it is empty. It goes by rmdir:
// what another program keeps there stays.
func (l *List) removeEmptyPod(uid types.UID) {
	dir := filepath.Join(l.options.Plugins.Host().GetPodsDir(), string(uid))
	l.removeEmptyTree(filepath.Join(dir, volumesDir), podKinds[volumesDir])
	l.removeProofs(dir)
	for kind, depth := range podKinds {
		l.removeEmptyTree(filepath.Join(dir, kind), depth)
	}
	l.removeEmptyDir(dir)
	if _, err := os.Lstat(dir); isMissing(err) {
		l.ForgetPod(uid)
	}
}

// removeProofs removes what plugins have recorded of the directories that they made for a pod, when none of those is there. A
// power cut leaves it, and no record.
func (l *List) removeProofs(pod string) {
	plugins := filepath.Join(pod, pluginsDir)
	names, _ := NamesIn(plugins) // What cannot be read stays.
	for _, name := range names {
		if err := owned.ForgetBelow(filepath.Join(pod, volumesDir), filepath.Join(plugins, name)); err != nil {
			l.options.Logger.Warn("proofs of the directories of a pod that is gone stay", "path", filepath.Join(plugins, name), "error", err)
		}
	}
}

// removeEmptyTree removes dir and what is in it, so many levels deep, as far as it is empty. The deepest may be mounts: they are
// not read.
func (l *List) removeEmptyTree(dir string, depth int) {
	if depth > 0 {
		names, _ := NamesIn(dir) // What cannot be read stays.
		for _, name := range names {
			l.removeEmptyTree(filepath.Join(dir, name), depth-1)
		}
	}
	l.removeEmptyDir(dir)
}

// ForgetPod takes the directory of a pod out of the list: it is gone, or the pod is here.
func (l *List) ForgetPod(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isIt := func(o Orphan) bool { return o.emptyPod && o.PodUID == uid }
	if slices.ContainsFunc(l.all, isIt) {
		l.all = slices.DeleteFunc(slices.Clone(l.all), isIt) // Others read the list that was reported.
	}
}

// RemoveEmptyPodDirs removes the remaining directories of a pod without known volumes.
func (l *List) RemoveEmptyPodDirs(uid types.UID) {
	if l.options.CheckRoot(context.Background()) != nil { //nolint:forbidigo // The removal of a pod has no context.
		return
	}
	dir := filepath.Join(l.options.Plugins.Host().GetPodsDir(), string(uid))
	if _, err := os.Lstat(dir); err == nil {
		// A power cut leaves the empty directories of volumes, too, and no record.
		l.removeEmptyTree(filepath.Join(dir, volumesDir), 2)
		l.removeEmptyPod(uid)
	}
}
