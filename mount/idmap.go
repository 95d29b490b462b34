package mount

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// IDMapping is one range of users or groups of an id-mapped mount: who owns a file as ContainerID in the filesystem owns it as
// HostID on the host, where it is seen through the mount. The ranges of a container's user namespace have the same form.
type IDMapping struct {
	// ContainerID is the first id in the filesystem, and in the user namespace.
	ContainerID uint32
	// HostID is the first id on the host.
	HostID uint32
	// Size is how many ids there are.
	Size uint32
}

// IDMappings are the ranges of an id-mapped mount. An id in no range is seen as the overflow id, 65534. The zero value maps
// nothing: the mount is an ordinary one.
type IDMappings struct {
	// UIDs are the ranges of users, GIDs those of groups. Both have a range, or neither has.
	UIDs, GIDs []IDMapping
}

// IsZero reports whether there are no ranges.
func (m IDMappings) IsZero() bool { return len(m.UIDs)+len(m.GIDs) == 0 }

// Validate returns an error that matches [ErrInvalid] for ranges that no kernel accepts. The kernel itself refuses ranges that
// overlap, and more than 340 of them.
func (m IDMappings) Validate() error {
	if len(m.UIDs) == 0 || len(m.GIDs) == 0 {
		return fmt.Errorf("id mappings: %d ranges of users and %d of groups: give one of each at least: %w", len(m.UIDs), len(m.GIDs), ErrInvalid)
	}
	for _, ranges := range [][]IDMapping{m.UIDs, m.GIDs} {
		for _, r := range ranges {
			if r.Size == 0 || r.ContainerID+r.Size < r.Size || r.HostID+r.Size < r.Size {
				return fmt.Errorf("id mapping %d:%d:%d is empty or passes the last id: %w", r.ContainerID, r.HostID, r.Size, ErrInvalid)
			}
		}
	}
	return nil
}

// CheckIDMappings proves that source, a directory or a file, can be mounted with mappings, together with all that is mounted
// beneath it: it makes that mount where no path leads to it, and lets it go again. The error matches [ErrUnsupported] if the
// kernel (before Linux 5.12) or one of the filesystems cannot do it, and unix.EPERM if a mount is id-mapped already, or if this
// process may not map the filesystem. A mount with request.IDMappings is then possible at this moment.
func (m *Mounter) CheckIDMappings(ctx context.Context, source string, mappings IDMappings) error {
	source, err := cleanPath("source", source)
	if err != nil {
		return err
	}
	if err := mappings.Validate(); err != nil {
		return err
	}
	plan := Plan{Source: source, Bind: true, Recursive: true, IDMappings: mappings}
	return m.calls.Do(ctx, abandonable.Key{Look: true, Path: source}, func(ctx context.Context) error {
		return m.checkIDMappings(ctx, &plan)
	})
}
