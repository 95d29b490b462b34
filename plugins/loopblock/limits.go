package loopblock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volumekit/volumekit/mount/loop"
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

// withinLimit calls attach, unless the node has as many volumes as it may have and this is none of them. Of several calls at
// once those that count beyond the limit are refused, and one of them may be refused for another that fails.
func (p *Plugin) withinLimit(ctx context.Context, file *os.File, attach func() (loop.Device, error)) (loop.Device, error) {
	if p.options.MaxVolumes <= 0 {
		return attach()
	}
	under := p.attaching.Add(1)
	defer p.attaching.Add(-1)
	_, err := p.loops.FindFile(ctx, file)
	if !errors.Is(err, loop.ErrNotAttached) {
		return attach() // which finds it, or says what is wrong
	}
	all, err := p.loops.Devices(ctx)
	if err != nil {
		return loop.Device{}, err
	}
	has := int64(0)
	for _, d := range all {
		if p.isOurs(d) {
			has++
		}
	}
	if has+under > p.options.MaxVolumes {
		return loop.Device{}, fmt.Errorf("%d volumes are attached to node %q, and %d others are being attached, of at most %d: detach one: %w",
			has, p.host.GetNodeName(), under-1, p.options.MaxVolumes, volume.ErrAttachLimit)
	}
	return attach()
}

// isOurs reports whether a device has an image of this node's: of its directory.
func (p *Plugin) isOurs(d loop.Device) bool {
	return strings.HasPrefix(d.Label, Name+"/") && filepath.Dir(d.BackingPath) == filepath.Dir(p.shownPath("any"))
}
