package recovery

import (
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
	"github.com/volumekit/volumekit/volumemanager/internal/pluginpaths"
)

// The records of mounts do not survive a reboot. Those of attachments do, and so do the directories of mounts. The recorded
// attachments therefore identify the volumes of the directories. Plugins cannot do so: after a reboot, nothing is mounted there
// that a plugin could read.

// attachedVolumes holds the volumes with a recorded attachment, by plugin and inner name: their names do not depend on a
// pod.
type attachedVolumes map[orphans.Dir]journal.Found

func attachedIn(recorded *journal.Journal) attachedVolumes {
	volumes := make(attachedVolumes)
	for _, v := range recorded.Attached() {
		volumes[orphans.Dir{Plugin: v.Record.Plugin, Name: v.Spec.Name(), Block: volume.IsBlock(v.Spec)}] = v
	}
	return volumes
}

// specOf returns the spec of the volume whose directory, or link, was found in the directory of a pod; nil if no recorded
// attachment is of that volume.
func (a attachedVolumes) specOf(d orphans.Dir) *volume.Spec {
	return a[orphans.Dir{Plugin: d.Plugin, Name: d.Name, Block: d.Block}].Spec
}

// rebuildStagings returns the recorded volumes without a recorded staging that have a directory at their plugin's staging
// path. It adds the pods for which a device is bound there.
func (b *rebuilder) rebuildStagings(attached attachedVolumes) []journal.Found {
	var built []journal.Found
	names := make(map[string][]string)
	for _, v := range attached {
		if v.Record.Staging != nil {
			continue
		}
		path, err := pluginpaths.Staging(b.options.Plugins, v.Spec)
		if err != nil || path == "" {
			continue // A plugin that is no longer registered cannot unstage it either.
		}
		// Read the directory above: the filesystem at the path may hang.
		dir := filepath.Dir(path)
		if _, ok := names[dir]; !ok {
			names[dir], _ = orphans.NamesIn(dir) // A staging in a directory that cannot be read stays unknown. If it is mounted, it is an orphan.
		}
		if !slices.Contains(names[dir], filepath.Base(path)) {
			continue
		}
		v.Record.Staging = &journal.Staging{Path: path, Mount: b.mounts.recordAt(path)}
		v.Record.Pods = b.boundFor(v)
		if v, err := b.check(v.Record); err == nil {
			built = append(built, v)
		}
	}
	return built
}

// boundFor returns the set-ups of a block volume: one for each pod whose UID is the name of a bind, or of the file of a bind that is
// no longer mounted.
func (b *rebuilder) boundFor(v journal.Found) map[types.UID]*journal.SetUp {
	if !volume.IsBlock(v.Spec) {
		return v.Record.Pods
	}
	pods := make(map[types.UID]*journal.SetUp)
	uids, _ := orphans.BindsIn(v.Record.Staging.Path) // An unreadable directory is handled as above.
	for _, uid := range uids {
		link := filepath.Join(b.options.Plugins.Host().GetPodVolumeDeviceDir(types.UID(uid), v.Record.Plugin), v.Spec.Name())
		pods[types.UID(uid)] = &journal.SetUp{
			OuterNames: []string{v.Spec.Name()}, Path: link,
			Mount: b.mounts.recordAt(filepath.Join(v.Record.Staging.Path, uid)),
		}
	}
	return pods
}

// recordAt returns the identity of the uppermost mount at a path; the zero value if nothing is mounted there.
func (f mountsFound) recordAt(path string) journal.Mount {
	if at, ok := f.top[path]; ok {
		return journal.MountOf(f.table[at])
	}
	return journal.Mount{}
}
