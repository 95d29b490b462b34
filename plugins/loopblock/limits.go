package loopblock

import (
	"context"

	"github.com/volumekit/volumekit/volume"
)

// GetVolumeLimits implements volume.VolumePluginWithAttachLimits: [Options].MaxVolumes under the key of VolumeLimitKey, and
// nothing where that is no limit. The kernel makes loop devices as they are asked for: the parameter max_loop of its module
// only says how many there are in the beginning.
func (p *Plugin) GetVolumeLimits(context.Context) (map[string]int64, error) {
	if p.options.MaxVolumes <= 0 {
		return map[string]int64{}, nil
	}
	return map[string]int64{p.VolumeLimitKey(nil): p.options.MaxVolumes}, nil
}

// VolumeLimitKey implements volume.VolumePluginWithAttachLimits. All volumes count alike.
func (p *Plugin) VolumeLimitKey(*volume.Spec) string { return "attachable-volumes-csi-" + Driver }
