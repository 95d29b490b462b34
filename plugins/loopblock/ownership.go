package loopblock

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// group is what ownership is asked for.
type group struct {
	gid int
	// onlyRoot says that nothing is done when the root of the volume is right already.
	onlyRoot bool
}

// The bits that are added: read and write for owner and group; search and setgid for directories.
const (
	fileBits = 0o660
	dirBits  = 0o770
	setgid   = 0o2000
)

// own gives the content to the group that the pod asks for. It works on the staged directory, so that nothing is bound
// when it fails, and a set-up that was cut short is finished by the next one.
func (m *mounter) own(ctx context.Context, args volume.MounterArgs) error {
	if args.FsGroup == nil || m.src.podReadOnly || args.IsRemount {
		return nil
	}
	policy := args.FSGroupChangePolicy
	wanted := group{
		gid:      int(*args.FsGroup),
		onlyRoot: policy != nil && *policy == v1.FSGroupChangeOnRootMismatch,
	}
	if err := setGroup(ctx, m.plugin.stagingPath(m.src.handle), wanted); err != nil {
		return fmt.Errorf("giving the content to group %d: %w", wanted.gid, err)
	}
	return nil
}
