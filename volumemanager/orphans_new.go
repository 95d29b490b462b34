package volumemanager

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
	"github.com/volumekit/volumekit/volume"
)

// This file lists mounts of which nothing is on record and that come while the manager runs, such as one that a plugin makes in a
// goroutine of its own after its call has returned.

// mayBeOrphan reports whether a path lies where the mounts of volumes do. The parts of volumes that are bound for containers go
// with their volumes.
func (m *Manager) mayBeOrphan(path string) bool {
	host := m.plugins.Host()
	inPods, inPlugins := strings.HasPrefix(path, host.GetPodsDir()+"/"), strings.HasPrefix(path, filepath.Clean(host.GetPluginDir(""))+"/")
	return m.journal != nil && (inPods || inPlugins) && !strings.Contains(path, "/"+subpathsDir+"/")
}

// examineOrphan lists what is mounted at a path of which nothing is known and nothing is on record, or takes it from the list when
// it is there no more. Before the look at the start has listed all that was there, there is no list.
func (m *Manager) examineOrphan(ctx context.Context, path string) {
	if !m.mayBeOrphan(path) || m.watch.IsBusy(path) {
		return
	}
	var found []Orphan
	mp, err := m.watch.Lookup(ctx, path)
	switch {
	case err == nil:
		mp.Path = path
		found = orphanMounts(newMountsFound([]mount.MountPoint{mp}), m.plugins.Host(), m.journal.recordedPaths())
	case !errors.Is(err, mount.ErrNotMounted):
		return // It is said nothing of what cannot be looked at.
	}
	for i := range found {
		found[i].later = true
	}
	if !m.relist(path, mp, found) {
		return
	}
	for _, o := range found {
		m.options.Logger.Warn("something was mounted where volumes are, and nothing is on record of it: unmount it if nobody needs it",
			"path", o.Path, "type", o.FSType, "source", o.Source)
	}
	uid, _, _ := strings.Cut(strings.TrimPrefix(path, m.plugins.Host().GetPodsDir()+"/"), "/")
	m.tellOfOrphans([]Orphan{{Path: path, PodUID: types.UID(uid)}})
}

// examineUnknown looks at the mounts of a table that may be orphans and of which nothing is known, and at those that were listed
// and are not in it. Of a mount that is known it costs a look into a map.
func (m *Manager) examineUnknown(ctx context.Context, at map[string]int) {
	for path := range at {
		if m.mayBeOrphan(path) && !m.watch.IsMount(path) {
			m.examineOrphan(ctx, path)
		}
	}
	m.mu.Lock()
	listed := m.orphans
	m.mu.Unlock()
	for _, o := range listed {
		if _, ok := at[o.Path]; o.Mounted && !ok {
			m.examineOrphan(ctx, o.Path)
		}
	}
}

// relist puts what was found mounted at a path, or nothing, in place of what the list of orphans says of it, and reports whether that
// changed the list.
func (m *Manager) relist(path string, mp mount.MountPoint, found []Orphan) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	isIt := func(o Orphan) bool { return o.Mounted && o.Path == path }
	known := slices.IndexFunc(m.orphans, isIt)
	if !m.looked || len(found) == 0 && known < 0 || len(found) > 0 && known >= 0 && m.orphans[known].identity.Is(mp) {
		return false
	}
	m.orphans = append(slices.DeleteFunc(slices.Clone(m.orphans), isIt), found...) // Others read the list that was reported.
	slices.SortFunc(m.orphans, byPath)
	return true
}

// orphansOf returns the paths of the orphans that are mounts with one of the unique ids.
func (m *Manager) orphansOf(ids []uint64) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var paths []string
	for _, o := range m.orphans {
		if o.Mounted && slices.Contains(ids, o.identity.UniqueID) {
			paths = append(paths, o.Path)
		}
	}
	return paths
}

// keptDirectory lists a directory that is there after its volume was taken away, and takes one that is gone from the list.
func (m *Manager) keptDirectory(path string, pod types.UID, removed bool) {
	o := Orphan{Path: path, PodUID: pod, later: true}
	gone := removed
	if !gone {
		_, err := os.Lstat(path)
		gone = err != nil || m.checkPlace(o) != nil
	}
	o.Err = fmt.Errorf("directory %q stays, since something else is in it: move that away, and remove it: %w", path, volume.ErrDirectoryKept)
	m.mu.Lock()
	defer m.mu.Unlock()
	isIt := func(o Orphan) bool { return o.Path == path }
	if gone && !slices.ContainsFunc(m.orphans, isIt) {
		return
	}
	m.orphans = slices.DeleteFunc(slices.Clone(m.orphans), isIt) // Others read the list that was reported.
	if !gone {
		m.orphans = append(m.orphans, o)
		slices.SortFunc(m.orphans, byPath)
	}
}

// watchedOrphans is the list of orphans for the watch of mounts.
type watchedOrphans struct{ m *Manager }

func (o watchedOrphans) MayBe(path string) bool                   { return o.m.mayBeOrphan(path) }
func (o watchedOrphans) Examine(ctx context.Context, path string) { o.m.examineOrphan(ctx, path) }
func (o watchedOrphans) ExamineUnknown(ctx context.Context, at map[string]int) {
	o.m.examineUnknown(ctx, at)
}
func (o watchedOrphans) PathsOf(ids []uint64) []string { return o.m.orphansOf(ids) }
func (o watchedOrphans) Changed()                      { o.m.orphansChanged() }
func (o watchedOrphans) Kept(path string, pod types.UID, removed bool) {
	o.m.keptDirectory(path, pod, removed)
}
