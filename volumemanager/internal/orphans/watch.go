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

// This file lists mounts of which nothing is on record and that come while the manager runs, such as one that a plugin makes in a
// goroutine of its own after its call has returned.

// MayBe reports whether a path lies where the mounts of volumes do. The parts of volumes that are bound for containers go
// with their volumes.
func (l *List) MayBe(path string) bool {
	host := l.options.Plugins.Host()
	inPods, inPlugins := strings.HasPrefix(path, host.GetPodsDir()+"/"), strings.HasPrefix(path, filepath.Clean(host.GetPluginDir(""))+"/")
	return l.options.Records != nil && (inPods || inPlugins) && !strings.Contains(path, "/"+safepath.SubpathsDir+"/")
}

// Examine lists what is mounted at a path of which nothing is known and nothing is on record, or takes it from the list when
// it is there no more. Before the look at the start has listed all that was there, there is no list.
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
		return // It is said nothing of what cannot be looked at.
	}
	for i := range found {
		found[i].later = true
	}
	if !l.relist(path, mp, found) {
		return
	}
	for _, o := range found {
		l.options.Logger.Warn("something was mounted where volumes are, and nothing is on record of it: unmount it if nobody needs it",
			"path", o.Path, "type", o.FSType, "source", o.Source)
	}
	uid, _, _ := strings.Cut(strings.TrimPrefix(path, l.options.Plugins.Host().GetPodsDir()+"/"), "/")
	l.tellOfOrphans([]Orphan{{Path: path, PodUID: types.UID(uid)}})
}

// ExamineUnknown looks at the mounts of a table that may be orphans and of which nothing is known, and at those that were listed
// and are not in it. Of a mount that is known it costs a look into a map.
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

// relist puts what was found mounted at a path, or nothing, in place of what the list of orphans says of it, and reports whether that
// changed the list.
func (l *List) relist(path string, mp mount.MountPoint, found []Orphan) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	isIt := func(o Orphan) bool { return o.Mounted && o.Path == path }
	known := slices.IndexFunc(l.all, isIt)
	if !l.looked || len(found) == 0 && known < 0 || len(found) > 0 && known >= 0 && l.all[known].Identity.Is(mp) {
		return false
	}
	l.all = append(slices.DeleteFunc(slices.Clone(l.all), isIt), found...) // Others read the list that was reported.
	slices.SortFunc(l.all, byPath)
	return true
}

// PathsOf returns the paths of the orphans that are mounts with one of the unique ids.
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

// Kept lists a directory that is there after its volume was taken away, and takes one that is gone from the list.
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
	l.all = slices.DeleteFunc(slices.Clone(l.all), isIt) // Others read the list that was reported.
	if !gone {
		l.all = append(l.all, o)
		slices.SortFunc(l.all, byPath)
	}
}
