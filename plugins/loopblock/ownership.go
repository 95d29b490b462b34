package loopblock

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

// checkGroup refuses what is no group id.
func checkGroup(gid *int64) error {
	if err := ownership.CheckGroup(gid); err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	return nil
}

// own gives the content to the group that the pod asks for. It works on the staged directory, so that nothing is bound
// when it fails, and it is called at every set-up, mounted or not, so that one that was cut short is finished by the next.
func (m *mounter) own(ctx context.Context, args volume.MounterArgs) error {
	if args.FsGroup == nil || m.src.podReadOnly || args.IsRemount {
		return nil
	}
	logger := m.plugin.logger.With("volume", m.src.handle, "group", *args.FsGroup)
	report, err := ownership.Apply(ctx, m.plugin.stagingPath(m.src.handle), ownership.Options{
		Group:  args.FsGroup,
		Policy: args.FSGroupChangePolicy,
		Events: m.plugin.options.Events,
		Pod:    m.pod,
		Progress: func(p ownership.Progress) {
			logger.Warn("giving the content to the group takes long", "elapsed", p.Elapsed, "visited", p.Visited)
		},
	})
	if report.GroupChanged+report.ModeChanged > 0 {
		logger.Info("the content was given to the group", "reason", report.Reason, "visited", report.Visited,
			"groups", report.GroupChanged, "modes", report.ModeChanged, "failed", report.Failed)
	}
	return err
}
