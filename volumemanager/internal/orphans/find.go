package orphans

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
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// Orphan is a mount, a directory or a loop device of which nothing is on record. It has what volumemanager.Orphan tells.
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

	// Identity is that of the mount; the zero value for a directory.
	Identity mount.Identity
	// Dir says which volume it is where the path tells that.
	Dir Dir
	// Device is the loop device, where the orphan is one.
	Device loop.Device
	// later says that it was found while the manager ran, and not by the look for orphans at its start.
	later bool
	// emptyPod says that it is the directory of a pod in which no volume is left.
	emptyPod bool
}

// Mounts returns the mounts of a table that lie in the directories of pods and plugins and belong to no recorded path.
func Mounts(table []mount.MountPoint, host volume.VolumeHost, recorded map[string]struct{}) []Orphan {
	pods, plugins := host.GetPodsDir(), filepath.Clean(host.GetPluginDir(""))
	top := make(map[string]int, len(table))
	for i := range table {
		top[table[i].Path] = i
	}
	var orphans []Orphan
	for i, mp := range table {
		inPods := strings.HasPrefix(mp.Path, pods+"/")
		if !inPods && !strings.HasPrefix(mp.Path, plugins+"/") || top[mp.Path] != i || paths.IsAtOrBeneathAny(mp.Path, recorded) {
			continue
		}
		o := Orphan{Path: mp.Path, Mounted: true, FSType: mp.FSType, Source: mp.Source, Identity: mp.Identity()}
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
	name, ok := strings.CutPrefix(rest, safepath.SubpathsDir+"/")
	if !ok {
		return false
	}
	name, _, _ = strings.Cut(name, "/")
	_, ok = recorded[containers.PartsOf(types.UID(uid), name)]
	return ok
}

// Dir is the directory, or the link, of a volume of a pod, as the layout of [volume.VolumeHost] tells it.
type Dir struct {
	// Path is absolute, as the host sees it.
	Path string
	// UID is that of the pod, Plugin the plugin's name, and Name that of the volume, as the path has them.
	UID    types.UID
	Plugin string
	Name   string
	// Block says that it is the link of a block volume.
	Block bool
}

// VolumeDirs returns what lies where volumes of pods do. Names that no volume can have are left out. It looks at no volume:
// what is mounted is not asked.
func VolumeDirs(ctx context.Context, host volume.VolumeHost) ([]Dir, error) {
	uids, err := NamesIn(host.GetPodsDir())
	var found []Dir
	for _, uid := range uids {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		pod := filepath.Join(host.GetPodsDir(), uid)
		for _, kind := range []string{"volumes", "volumeDevices"} {
			plugins, e := NamesIn(filepath.Join(pod, kind))
			err = errors.Join(err, e)
			for _, plugin := range plugins {
				dir := filepath.Join(pod, kind, plugin)
				names, e := NamesIn(dir)
				err = errors.Join(err, e)
				for _, name := range names {
					found = append(found, Dir{
						Path: filepath.Join(dir, name), UID: types.UID(uid), Plugin: volume.UnescapeQualifiedName(plugin),
						Name: name, Block: kind == "volumeDevices",
					})
				}
			}
		}
	}
	return found, err
}

// StagingDirs returns what lies where plugins stage and map volumes, by the custom of [volume.VolumeHost]: in the directories
// mounts and volumeDevices of each plugin. It looks at none of it.
func StagingDirs(host volume.VolumeHost) ([]string, error) {
	top := filepath.Clean(host.GetPluginDir(""))
	domains, err := NamesIn(top)
	var found []string
	for _, domain := range domains {
		plugins, e := NamesIn(filepath.Join(top, domain))
		err = errors.Join(err, e)
		for _, plugin := range plugins {
			for _, kind := range []string{"mounts", "volumeDevices"} {
				dir := filepath.Join(top, domain, plugin, kind)
				names, e := NamesIn(dir)
				err = errors.Join(err, e)
				for _, name := range names {
					found = append(found, filepath.Join(dir, name))
				}
			}
		}
	}
	return found, err
}

// NamesIn returns the names in a directory that can be those of a pod, a plugin or a volume. A directory that is missing has
// none.
func NamesIn(dir string) ([]string, error) {
	return namesIn(dir, func(fs.DirEntry) bool { return true })
}

// BindsIn returns the names of the binds of devices in a global map path, or of what is left of them. Directories there are the plugin's.
func BindsIn(globalMapPath string) ([]string, error) {
	return namesIn(globalMapPath, func(e fs.DirEntry) bool { return !e.IsDir() })
}

func namesIn(dir string, keep func(fs.DirEntry) bool) ([]string, error) {
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() { // A link leads elsewhere.
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if keep(e) && volume.CheckPathElement(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func byPath(a, b Orphan) int { return strings.Compare(a.Path, b.Path) }

// Report replaces what the status tells of the orphans that were looked for. Those that were found while the manager ran
// stay.
func (l *List) Report(orphans []Orphan) {
	l.mu.Lock()
	before := l.all
	for _, o := range before {
		if o.later && !slices.ContainsFunc(orphans, func(other Orphan) bool { return other.Path == o.Path }) {
			orphans = append(slices.Clip(orphans), o)
		}
	}
	slices.SortFunc(orphans, byPath)
	l.all, l.looked = orphans, true
	l.mu.Unlock()
	l.tellOfOrphans(slices.Concat(before, orphans)) // Who waits for a pod waits for what is gone from the list, too.
}

// Changed wakes who waits for orphans to go, if there are any.
func (l *List) Changed() {
	l.mu.Lock()
	orphans := l.all
	l.mu.Unlock()
	if len(orphans) > 0 {
		l.tellOfOrphans(orphans)
	}
}

func (l *List) tellOfOrphans(orphans []Orphan) {
	for _, o := range orphans {
		uid := o.PodUID
		if uid == "" {
			uid = types.UID(filepath.Base(o.Path)) // It may be bound for that pod; see LiveOf.
		}
		l.options.Notify(volume.UniquePodName(uid))
	}
	l.options.Notify(changes.AnyPod)
	l.options.InUseChanged() // What the node has in use may depend on it.
}
