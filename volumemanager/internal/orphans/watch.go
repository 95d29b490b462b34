package orphans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// This file lists unrecorded mounts that appear while the manager runs. For example, a plugin may mount in a goroutine of
// its own after its call has returned.

// MayBe reports whether a mount at this path may be an orphan: it lies where volumes are mounted. Parts of volumes that are
// bound for containers do not count, because they go with their volumes.
func (l *List) MayBe(path string) bool {
	host := l.options.Plugins.Host()
	inPods, inPlugins := strings.HasPrefix(path, host.GetPodsDir()+"/"), strings.HasPrefix(path, filepath.Clean(host.GetPluginDir(""))+"/")
	return l.options.Records != nil && (inPods || inPlugins) && !strings.Contains(path, "/"+safepath.SubpathsDir+"/")
}

// Examine lists an unrecorded mount at a path that is not known, or removes the path from the list if nothing is mounted
// there any more. It changes nothing until the manager has looked for orphans at its start.
func (l *List) Examine(ctx context.Context, path string) {
	if !l.MayBe(path) || l.options.IsBusy(path) {
		return
	}
	var found []Orphan
	mp, err := l.options.Lookup(ctx, path)
	switch {
	case err == nil:
		mp.Path = path
		found = Mounts([]mount.MountPoint{mp}, l.options.Plugins.Host(), l.options.Records.Paths())
	case !errors.Is(err, mount.ErrNotMounted):
		return // The mount could not be looked up: the list stays.
	}
	for i := range found {
		found[i].later = true
	}
	if !l.relist(path, mp, found) {
		return
	}
	for _, o := range found {
		l.options.Logger.Warn("something was mounted where volumes are, and nothing is on record of it: unmount it if it is not needed",
			"path", o.Path, "fstype", o.FSType, "source", o.Source)
	}
	uid, _, _ := strings.Cut(strings.TrimPrefix(path, l.options.Plugins.Host().GetPodsDir()+"/"), "/")
	l.notifyPods([]Orphan{{Path: path, PodUID: types.UID(uid)}})
}

// ExamineUnknown examines the mounts of a table that are not known, and the listed orphans that the table lacks. For a known
// mount it costs one map lookup.
func (l *List) ExamineUnknown(ctx context.Context, at map[string]int) {
	for path := range at {
		if l.MayBe(path) && !l.options.IsMount(path) {
			l.Examine(ctx, path)
		}
	}
	l.mu.Lock()
	listed := l.all
	l.mu.Unlock()
	for _, o := range listed {
		if _, ok := at[o.Path]; o.Mounted && !ok {
			l.Examine(ctx, o.Path)
		}
	}
}

// relist replaces the list's entry for the mount at a path by what was found there, which may be nothing. It reports whether
// the list has changed.
func (l *List) relist(path string, mp mount.MountPoint, found []Orphan) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	isIt := func(o Orphan) bool { return o.Mounted && o.Path == path }
	known := slices.IndexFunc(l.all, isIt)
	if !l.looked || len(found) == 0 && known < 0 || len(found) > 0 && known >= 0 && l.all[known].Identity.Is(mp) {
		return false
	}
	l.all = append(slices.DeleteFunc(slices.Clone(l.all), isIt), found...) // Callers still read the old list.
	slices.SortFunc(l.all, byPath)
	return true
}

// PathsOf returns the paths of the orphans that have one of these unique mount ids.
func (l *List) PathsOf(ids []uint64) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var paths []string
	for _, o := range l.all {
		if o.Mounted && slices.Contains(ids, o.Identity.UniqueID) {
			paths = append(paths, o.Path)
		}
	}
	return paths
}

// Kept updates the list after a teardown: it lists a directory that is still there, and removes one that is gone from the
// list.
func (l *List) Kept(path string, pod types.UID, removed bool) {
	o := Orphan{Path: path, PodUID: pod, later: true}
	gone := removed
	if !gone {
		_, err := os.Lstat(path)
		gone = err != nil || l.checkPlace(o) != nil
	}
	o.Err = fmt.Errorf("directory %q stays, since something else is in it: move that away, and remove it: %w", path, volume.ErrDirectoryKept)
	l.mu.Lock()
	defer l.mu.Unlock()
	isIt := func(o Orphan) bool { return o.Path == path }
	if gone && !slices.ContainsFunc(l.all, isIt) {
		return
	}
	l.all = slices.DeleteFunc(slices.Clone(l.all), isIt) // Callers still read the old list.
	if !gone {
		l.all = append(l.all, o)
		slices.SortFunc(l.all, byPath)
	}
}
