package volumemanager

import (
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
)

// The records of mounts do not outlive a boot, those of attachments do, and so do the directories of mounts. So what was
// attached tells of which volumes the directories are, without a question to a plugin: after a boot nothing is mounted there
// that a plugin could look at.

// sharedVolumes are the volumes on record whose names do not depend on a pod, by plugin and inner name.
type sharedVolumes map[orphans.Dir]foundVolume

// shared returns the volumes of which an attachment is on record.
func (j *journal) shared() sharedVolumes {
	j.mu.Lock()
	defer j.mu.Unlock()
	volumes := make(sharedVolumes)
	for _, e := range j.entries {
		if e.record.Attachment == nil {
			continue
		}
		spec, err := e.record.spec()
		if err != nil {
			continue // It was checked when it was read.
		}
		volumes[orphans.Dir{Plugin: e.record.Plugin, Name: spec.Name(), Block: isBlock(spec)}] = foundVolume{record: e.record, spec: spec}
	}
	return volumes
}

// specOf returns the spec of the volume whose directory, or link, was found in that of a pod; nil when it is not on record.
func (s sharedVolumes) specOf(d orphans.Dir) *volume.Spec {
	return s[orphans.Dir{Plugin: d.Plugin, Name: d.Name, Block: d.Block}].spec
}

// rebuildStagings returns the volumes on record of which there is a directory where their plugins stage them, and none on
// record, with the pods for which a device is bound there.
func (m *Manager) rebuildStagings(recorded sharedVolumes) []foundVolume {
	var built []foundVolume
	names := make(map[string][]string)
	for _, v := range recorded {
		if v.record.Staging != nil {
			continue
		}
		path, err := m.stagingOf(v.spec)
		if err != nil || path == "" {
			continue // A plugin that is not registered any more cannot unstage it either.
		}
		// The directory above is read, since what is mounted at the path may hang.
		dir := filepath.Dir(path)
		if _, ok := names[dir]; !ok {
			names[dir], _ = orphans.NamesIn(dir) // What cannot be read is not known; should it be a mount, it is an orphan.
		}
		if !slices.Contains(names[dir], filepath.Base(path)) {
			continue
		}
		v.record.Staging = &stagingRecord{Path: path, Mount: m.found.recordAt(path)}
		v.record.Pods = m.boundFor(v)
		if _, err := v.record.check(string(v.record.Volume), m.plugins.Host()); err == nil && m.agrees(v.record, v.spec) == nil {
			built = append(built, v)
		}
	}
	return built
}

// boundFor returns the set-ups of a block volume: one for each pod whose UID is the name of a bind, or what is left of one.
func (m *Manager) boundFor(v foundVolume) map[types.UID]*setUpRecord {
	if !isBlock(v.spec) {
		return v.record.Pods
	}
	pods := make(map[types.UID]*setUpRecord)
	uids, _ := orphans.NamesIn(v.record.Staging.Path) // as above
	for _, uid := range uids {
		link := filepath.Join(m.plugins.Host().GetPodVolumeDeviceDir(types.UID(uid), v.record.Plugin), v.spec.Name())
		pods[types.UID(uid)] = &setUpRecord{
			OuterNames: []string{v.spec.Name()}, Path: link,
			Mount: m.found.recordAt(filepath.Join(v.record.Staging.Path, uid)),
		}
	}
	return pods
}

// recordAt returns by what the uppermost mount at a path is known; the zero value when none is there.
func (f mountsFound) recordAt(path string) mountRecord {
	if at, ok := f.top[path]; ok {
		return mountRecordOf(f.table[at])
	}
	return mountRecord{}
}
