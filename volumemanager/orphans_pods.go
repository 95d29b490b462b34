package volumemanager

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// This file deals with the directories of pods in which no volume is left: a manager that was killed leaves them, empty and on
// no record.

// podKinds are the directories in that of a pod which are the manager's, with how deep those below are empty when no volume is
// left.
var podKinds = map[string]int{volumesDir: 1, "volumeDevices": 1, pluginsDir: 1, subpathsDir: 3}

const volumesDir, pluginsDir = "volumes", "plugins"

// emptyPods returns the directories of pods that hold no volume, of which nothing was on record since the start, and of which
// no pod is known. What only others have made something in is none.
func (m *Manager) emptyPods(dirs []foundDir, recorded trace) ([]Orphan, error) {
	pods := m.plugins.Host().GetPodsDir()
	uids, err := namesIn(pods)
	hasVolume := make(map[types.UID]bool)
	for _, d := range dirs {
		hasVolume[d.uid] = true
	}
	used, mounted := paths.WithParents(maps.Keys(recorded.paths)), paths.WithParents(maps.Keys(m.found.top))
	var empty []Orphan
	for _, uid := range uids {
		o := Orphan{Path: filepath.Join(pods, uid), PodUID: types.UID(uid), emptyPod: true}
		_, isUsed := used[o.Path]
		_, hasVolumes := used[partsOf(o.PodUID, "")] // which may be paths of the host
		_, isMounted := mounted[o.Path]
		if !hasVolume[o.PodUID] && !isUsed && !hasVolumes && !isMounted && !m.isKnown(volume.UniquePodName(uid)) && isOfManager(o.Path) {
			empty = append(empty, o)
		}
	}
	return empty, err
}

// isOfManager reports whether the directory of a pod holds one that a manager makes, or nothing at all.
func isOfManager(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && (len(entries) == 0 || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		_, is := podKinds[e.Name()]
		return is && e.IsDir()
	}))
}

// removeEmptyPods removes the empty directories of the pods in whose directories orphans were, and returns those that stay.
func (m *Manager) removeEmptyPods(ctx context.Context, orphans, rest []Orphan) []Orphan {
	told := make(map[types.UID]bool)
	for _, o := range rest {
		told[o.PodUID] = true
	}
	var stay []Orphan
	for _, o := range orphans {
		if o.PodUID == "" || told[o.PodUID] {
			continue // What is told of is in that directory.
		}
		told[o.PodUID] = true
		dir := filepath.Join(m.plugins.Host().GetPodsDir(), string(o.PodUID))
		if ctx.Err() != nil || m.isKnown(volume.UniquePodName(o.PodUID)) || m.journal.isRecorded(dir) {
			continue
		}
		m.removeEmptyPod(o.PodUID)
		if _, err := os.Lstat(dir); err == nil {
			err = fmt.Errorf("directory %q of a pod that is not here stays, since something else is in it: remove it if nobody needs it: %w", dir, volume.ErrInUse)
			stay = append(stay, Orphan{Path: dir, PodUID: o.PodUID, Err: err, emptyPod: true})
		}
	}
	return stay
}

// removeEmptyPod removes what a manager has made in the directory of a pod, and that, as far as it is empty. It goes by rmdir:
// what anybody else keeps there stays.
func (m *Manager) removeEmptyPod(uid types.UID) {
	dir := filepath.Join(m.plugins.Host().GetPodsDir(), string(uid))
	m.removeEmptyTree(filepath.Join(dir, volumesDir), podKinds[volumesDir])
	m.removeProofs(dir)
	for kind, depth := range podKinds {
		m.removeEmptyTree(filepath.Join(dir, kind), depth)
	}
	m.removeEmptyDir(dir)
	if _, err := os.Lstat(dir); isMissing(err) {
		m.forgetEmptyPod(uid)
	}
}

// removeProofs removes what plugins have recorded of the directories that they made for a pod, when none of those is there. A
// power cut leaves it, and no record.
func (m *Manager) removeProofs(pod string) {
	plugins := filepath.Join(pod, pluginsDir)
	names, _ := namesIn(plugins) // What cannot be read stays.
	for _, name := range names {
		if err := owned.ForgetBelow(filepath.Join(pod, volumesDir), filepath.Join(plugins, name)); err != nil {
			m.options.Logger.Warn("proofs of the directories of a pod that is gone stay", "path", filepath.Join(plugins, name), "error", err)
		}
	}
}

// removeEmptyTree removes dir and what is in it, so many levels deep, as far as it is empty. The deepest may be mounts: they are
// not read.
func (m *Manager) removeEmptyTree(dir string, depth int) {
	if depth > 0 {
		names, _ := namesIn(dir) // What cannot be read stays.
		for _, name := range names {
			m.removeEmptyTree(filepath.Join(dir, name), depth-1)
		}
	}
	m.removeEmptyDir(dir)
}

// forgetEmptyPod takes the directory of a pod out of the status: it is gone, or the pod is here.
func (m *Manager) forgetEmptyPod(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetEmptyPodLocked(uid)
}

func (m *Manager) forgetEmptyPodLocked(uid types.UID) {
	isIt := func(o Orphan) bool { return o.emptyPod && o.PodUID == uid }
	if slices.ContainsFunc(m.orphans, isIt) {
		m.orphans = slices.DeleteFunc(slices.Clone(m.orphans), isIt) // Others read the list that was reported.
	}
}
