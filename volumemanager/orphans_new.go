package volumemanager

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
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
func (m *Manager) examineOrphan(ctx context.Context, kernel mountLooker, path string) {
	if !m.mayBeOrphan(path) || m.mounts.isBusy(path) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var found []Orphan
	mp, err := kernel.Lookup(ctx, path)
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
func (m *Manager) examineUnknown(ctx context.Context, kernel mountLooker, at map[string]int) {
	for path := range at {
		if m.mayBeOrphan(path) && m.mounts.get(path) == nil {
			m.examineOrphan(ctx, kernel, path)
		}
	}
	m.mu.Lock()
	listed := m.orphans
	m.mu.Unlock()
	for _, o := range listed {
		if _, ok := at[o.Path]; o.Mounted && !ok {
			m.examineOrphan(ctx, kernel, o.Path)
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
