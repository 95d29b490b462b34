package volumemanager

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// OrphanPolicy says what becomes of orphans.
type OrphanPolicy string

const (
	// OrphansAreReported leaves them where they are.
	OrphansAreReported OrphanPolicy = ""
	// OrphansAreRemoved removes them once all pods are known (PodsComplete) and when no pod of that UID is: mounts by a
	// plain unmount, directories by rmdir, nothing else, and only at the places where the registered plugins have volumes: those
	// of pods and their parts, {plugin}/mounts/{volume} and {plugin}/volumeDevices/{volume}. What lies elsewhere below the root
	// stays, with an error that matches mount.ErrForeign. One that is in use, or not empty, stays. A loop device is detached
	// when it is proven to be of a volume of ours, by the label that its plugin gave it and by where its file lies, and
	// nobody uses it.
	OrphansAreRemoved OrphanPolicy = "remove"
)

// Orphan is a mount, a directory or a loop device of which nothing is on record: a mount where the volumes of this node are,
// a directory where volumes are set up for pods, staged ({plugin}/mounts) or mapped ({plugin}/volumeDevices), the directory of a
// pod that is not known in which no volume is left, or a loop device whose file lies under the root.
type Orphan struct {
	// Path is its absolute path; that of a loop device is the path of its node.
	Path string
	// BackingFile is the file of a loop device; empty for all others.
	BackingFile string
	// PodUID is the pod in whose directory it is; empty when it is in none.
	PodUID types.UID
	// Mounted is true for a mount, false for a directory.
	Mounted bool
	// FSType and Source are those of the mount.
	FSType, Source string
	// Err is why it could not be rebuilt or removed; nil when nothing was tried.
	Err error

	identity mount.Identity
	// dir says which volume it is where the path tells that.
	dir    foundDir
	device loop.Device
	// later says that it was found while the manager ran, and not by the look for orphans at its start.
	later bool
	// emptyPod says that it is the directory of a pod in which no volume is left.
	emptyPod bool
}

// orphanMounts returns the mounts of a table that lie in the directories of pods and plugins and belong to no recorded path.
func orphanMounts(f mountsFound, host volume.VolumeHost, recorded map[string]struct{}) []Orphan {
	pods, plugins := host.GetPodsDir(), filepath.Clean(host.GetPluginDir(""))
	var orphans []Orphan
	for i, mp := range f.table {
		inPods := strings.HasPrefix(mp.Path, pods+"/")
		if !inPods && !strings.HasPrefix(mp.Path, plugins+"/") || f.top[mp.Path] != i || paths.IsAtOrBeneathAny(mp.Path, recorded) {
			continue
		}
		o := Orphan{Path: mp.Path, Mounted: true, FSType: mp.FSType, Source: mp.Source, identity: mp.Identity()}
		if inPods {
			uid, rest, _ := strings.Cut(mp.Path[len(pods)+1:], "/")
			o.PodUID = types.UID(uid)
			if isPartOfRecorded(uid, rest, recorded) {
				continue
			}
		}
		orphans = append(orphans, o)
	}
	return orphans
}

// isPartOfRecorded reports whether a path in a pod's directory is that of a part of a recorded volume, which was bound for a
// container beside it: {pod}/volume-subpaths/{volume}/{container}/{number}.
func isPartOfRecorded(uid, rest string, recorded map[string]struct{}) bool {
	name, ok := strings.CutPrefix(rest, subpathsDir+"/")
	if !ok {
		return false
	}
	name, _, _ = strings.Cut(name, "/")
	_, ok = recorded[partsOf(types.UID(uid), name)]
	return ok
}

// subpathsDir is the directory of a pod's sub-paths.
const subpathsDir = "volume-subpaths"

// foundDir is the directory, or the link, of a volume of a pod, as the layout of [volume.VolumeHost] tells it.
type foundDir struct {
	path   string
	uid    types.UID
	plugin string
	name   string
	block  bool
}

// volumeDirs returns what lies where volumes of pods do. Names that no volume can have are left out. It looks at no volume:
// what is mounted is not asked.
func volumeDirs(ctx context.Context, host volume.VolumeHost) ([]foundDir, error) {
	uids, err := namesIn(host.GetPodsDir())
	var found []foundDir
	for _, uid := range uids {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		pod := filepath.Join(host.GetPodsDir(), uid)
		for _, kind := range []string{"volumes", "volumeDevices"} {
			plugins, e := namesIn(filepath.Join(pod, kind))
			err = errors.Join(err, e)
			for _, plugin := range plugins {
				dir := filepath.Join(pod, kind, plugin)
				names, e := namesIn(dir)
				err = errors.Join(err, e)
				for _, name := range names {
					found = append(found, foundDir{
						path: filepath.Join(dir, name), uid: types.UID(uid), plugin: volume.UnescapeQualifiedName(plugin),
						name: name, block: kind == "volumeDevices",
					})
				}
			}
		}
	}
	return found, err
}

// stagingDirs returns what lies where plugins stage and map volumes, by the custom of [volume.VolumeHost]: in the directories
// mounts and volumeDevices of each plugin. It looks at none of it.
func stagingDirs(host volume.VolumeHost) ([]string, error) {
	top := filepath.Clean(host.GetPluginDir(""))
	domains, err := namesIn(top)
	var found []string
	for _, domain := range domains {
		plugins, e := namesIn(filepath.Join(top, domain))
		err = errors.Join(err, e)
		for _, plugin := range plugins {
			for _, kind := range []string{"mounts", "volumeDevices"} {
				dir := filepath.Join(top, domain, plugin, kind)
				names, e := namesIn(dir)
				err = errors.Join(err, e)
				for _, name := range names {
					found = append(found, filepath.Join(dir, name))
				}
			}
		}
	}
	return found, err
}

// namesIn returns the names in a directory that can be those of a pod, a plugin or a volume. A directory that is missing has
// none.
func namesIn(dir string) ([]string, error) {
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() { // A link leads elsewhere.
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if volume.CheckPathElement(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// recordedPaths returns every path on record, as it is now.
func (j *journal) recordedPaths() map[string]struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	paths := make(map[string]struct{}, len(j.entries))
	for _, e := range j.entries {
		for path := range e.record.paths() {
			paths[path] = struct{}{}
		}
	}
	return paths
}

func byPath(a, b Orphan) int { return strings.Compare(a.Path, b.Path) }

// reportOrphans replaces what the status tells of the orphans that were looked for. Those that were found while the manager ran
// stay.
func (m *Manager) reportOrphans(orphans []Orphan) {
	m.mu.Lock()
	before := m.orphans
	for _, o := range before {
		if o.later && !slices.ContainsFunc(orphans, func(other Orphan) bool { return other.Path == o.Path }) {
			orphans = append(slices.Clip(orphans), o)
		}
	}
	slices.SortFunc(orphans, byPath)
	m.orphans, m.looked = orphans, true
	m.mu.Unlock()
	m.tellOfOrphans(slices.Concat(before, orphans)) // Who waits for a pod waits for what is gone from the list, too.
}

// orphansChanged wakes who waits for orphans to go, if there are any.
func (m *Manager) orphansChanged() {
	m.mu.Lock()
	orphans := m.orphans
	m.mu.Unlock()
	if len(orphans) > 0 {
		m.tellOfOrphans(orphans)
	}
}

func (m *Manager) tellOfOrphans(orphans []Orphan) {
	for _, o := range orphans {
		uid := o.PodUID
		if uid == "" {
			uid = types.UID(filepath.Base(o.Path)) // It may be bound for that pod; see liveOrphansOf.
		}
		m.changes.Notify(volume.UniquePodName(uid))
	}
	m.changes.Notify(changes.AnyPod)
	m.exchange.podsComplete() // What the node has in use may depend on it.
}

// tellFound adds what was found at the start, beside volumes, to the status. An orphan that has become a volume is none any
// more.
func (m *Manager) tellFound(status *NodeStatus) {
	m.mu.Lock()
	status.Damaged, status.Rebuilt, status.Orphans = slices.Clone(m.damaged), m.rebuilt, slices.Clone(m.orphans)
	m.mu.Unlock()
	if len(status.Orphans) > 0 {
		status.Orphans = withoutRecorded(status.Orphans, m.journal.recordedPaths())
		status.Orphans = withoutRecordedDevices(status.Orphans, m.journal.recordedDevices())
	}
}
