package volumemanager

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// This file takes over the records of managers that joined a pod's UID and the name of its volume by a dash, which is a part of
// both.

// firstVersion is that of records with such names.
const firstVersion = 1

// renamed returns a record under the unique name that its volume has now. One whose plugin does not answer stays what it is.
func (m *Manager) renamed(v foundVolume) foundVolume {
	if v.record.Version != firstVersion {
		return v
	}
	resolved, err := m.plugins.Resolve(v.spec)
	if err != nil {
		return v
	}
	v.record.Version = recordVersion
	if resolved.Attachable || resolved.DeviceMountable || len(v.record.Pods) != 1 {
		return v
	}
	for uid := range v.record.Pods {
		name, err := resolved.UniqueVolumeName(volume.UniquePodName(uid))
		if err == nil && v.record.Volume == olderName(v.record.Plugin, uid, v.spec) {
			v.record.Volume = name
		}
	}
	return v
}

// olderName is the unique name that a volume of one pod had.
func olderName(plugin string, uid types.UID, spec *volume.Spec) v1.UniqueVolumeName {
	return volume.GetUniqueVolumeName(plugin, string(uid)+"-"+spec.Name())
}

// movedRecord is a record that is kept under a key which is not its volume's name any more.
type movedRecord struct {
	dir recordDir
	key string
	to  v1.UniqueVolumeName
}

// move writes the records of volumes under their names, and then removes those under other keys. What cannot be written stays,
// and is moved at the next start.
func (j *journal) move(records []movedRecord) {
	for _, r := range records {
		err := j.rewrite(podvolume.Key{Volume: r.to})
		if err == nil {
			err = r.dir.Remove(r.key)
		}
		if err != nil {
			j.logger.Warn("a record of an older version stays under its old name", "record", r.key, "volume", r.to, "error", err)
		}
	}
}
