package loopblock

import (
	"context"
	"fmt"
	"math"

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

// checkGroup refuses what is no group id. The largest 32-bit number means "no change" to chown(2).
func checkGroup(gid *int64) error {
	if gid == nil || *gid >= 0 && *gid < math.MaxUint32 {
		return nil
	}
	return fmt.Errorf("fsGroup %d is no group id: use a number from 0 to %d: %w", *gid, int64(math.MaxUint32-1), volume.ErrInvalid)
}

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
