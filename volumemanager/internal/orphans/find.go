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

// Orphan is a mount, a directory or a loop device without a record. It has the facts of volumemanager.Orphan.
type Orphan struct {
	// Path is the absolute path; for a loop device, the path of its node.
	Path string
	// BackingFile is the file behind a loop device; empty for any other orphan.
	BackingFile string
	// PodUID is the pod whose directory holds the orphan; empty if none does.
	PodUID types.UID
	// Mounted is true for a mount, and false for any other orphan.
	Mounted bool
	// FSType and Source are the filesystem type and the source of a mount.
	FSType, Source string
	// Err is why the orphan could not be rebuilt or removed; nil if the manager has not tried.
	Err error

	// Identity is the identity of a mount; zero for any other orphan.
	Identity mount.Identity
	// Dir identifies the volume if the path does; otherwise it is zero.
	Dir Dir
	// Device is the loop device; zero for any other orphan.
	Device loop.Device
	// later says that the orphan was found while the manager ran, not by the search at its start.
	later bool
	// emptyPod says that the orphan is the directory of a pod without any volume in it.
	emptyPod bool
}

// Mounts returns the mounts of a table that are in the directories of pods and plugins, and neither at nor below a
// recorded path.
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

// isPartOfRecorded reports whether a path in a pod's directory is a bound part of a recorded volume. The parts for
// containers lie beside the volume: {pod}/volume-subpaths/{volume}/{container}/{number}.
func isPartOfRecorded(uid, rest string, recorded map[string]struct{}) bool {
	name, ok := strings.CutPrefix(rest, safepath.SubpathsDir+"/")
	if !ok {
		return false
	}
	name, _, _ = strings.Cut(name, "/")
	_, ok = recorded[containers.PartsOf(types.UID(uid), name)]
	return ok
}

// Dir is the directory of a pod's volume, or the link to its device. Its fields are read from the path, by the layout of
// [volume.VolumeHost].
type Dir struct {
	// Path is the absolute path on the host.
	Path string
	// UID is the pod's UID, Plugin is the plugin's name, and Name is the volume's name, as they stand in the path.
	UID    types.UID
	Plugin string
	Name   string
	// Block says that this is the link to the device of a block volume.
	Block bool
}

// VolumeDirs returns all entries where pods have volumes, except names that no volume can have. It reads only the
// directories above the volumes: a volume that hangs does not delay it.
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

// StagingDirs returns all entries where plugins stage and map volumes: in the directories mounts and volumeDevices of each
// plugin, the convention of [volume.VolumeHost]. It does not read the entries themselves.
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

// NamesIn returns the names in a directory that can be names of a pod, a plugin or a volume. A missing directory has none.
func NamesIn(dir string) ([]string, error) {
	return namesIn(dir, func(fs.DirEntry) bool { return true })
}

// BindsIn returns the names of device binds in a global map path, including the remains of binds. It leaves out directories:
// they belong to the plugin.
func BindsIn(globalMapPath string) ([]string, error) {
	return namesIn(globalMapPath, func(e fs.DirEntry) bool { return !e.IsDir() })
}

func namesIn(dir string, keep func(fs.DirEntry) bool) ([]string, error) {
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() { // A symbolic link leads elsewhere.
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

// Report replaces the orphans that the search at the start has found. Orphans that were found later stay listed.
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
	l.notifyPods(slices.Concat(before, orphans)) // Callers may also wait for an orphan that the list has just lost.
}

// Changed wakes the callers that wait for orphans to go, if there are any orphans.
func (l *List) Changed() {
	l.mu.Lock()
	orphans := l.all
	l.mu.Unlock()
	if len(orphans) > 0 {
		l.notifyPods(orphans)
	}
}

func (l *List) notifyPods(orphans []Orphan) {
	for _, o := range orphans {
		uid := o.PodUID
		if uid == "" {
			uid = types.UID(filepath.Base(o.Path)) // It may be a device bound for that pod; see LiveOf.
		}
		l.options.Notify(volume.UniquePodName(uid))
	}
	l.options.Notify(changes.AnyPod)
	l.options.InUseChanged() // The list of volumes in use may depend on it.
}
