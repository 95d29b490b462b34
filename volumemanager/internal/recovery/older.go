package recovery

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
)

// This file reads the records of earlier managers. Their unique names joined a pod's UID and the volume's name with a dash;
// but a dash may also be a part of either.

// firstVersion is the version of records with such names.
const firstVersion = 1

// renamed returns a record under the volume's present unique name. If the plugin is not registered, the record stays as it
// is.
func (p *proofs) renamed(v journal.Found) journal.Found {
	if v.Record.Version != firstVersion {
		return v
	}
	resolved, err := p.plugins.Resolve(v.Spec)
	if err != nil {
		return v
	}
	v.Record.Version = journal.Version
	if resolved.Attachable || resolved.DeviceMountable || len(v.Record.Pods) != 1 {
		return v
	}
	for uid := range v.Record.Pods {
		name, err := resolved.UniqueVolumeName(volume.UniquePodName(uid))
		if err == nil && v.Record.Volume == olderName(v.Record.Plugin, uid, v.Spec) {
			v.Record.Volume = name
		}
	}
	return v
}

// olderName returns the unique name that earlier managers gave a volume of one pod.
func olderName(plugin string, uid types.UID, spec *volume.Spec) v1.UniqueVolumeName {
	return volume.GetUniqueVolumeName(plugin, string(uid)+"-"+spec.Name())
}
