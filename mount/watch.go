package mount

import (
	"context"
	"fmt"
)

// TableChange is what [Mounter.Watch] has seen since its last call.
type TableChange struct {
	// Attached are the mounts that have come, and those that were moved, as they are now. What has gone again is not among
	// them. It is in the order of the events.
	Attached []MountPoint
	// Detached are the unique ids of the mounts that have gone, in the order of the events.
	Detached []uint64
	// Whole says that the two lists do not hold all: events were lost, or this kernel does not tell which mounts it was
	// (before Linux 6.15). Compare with [Mounter.List] whatever you care about.
	Whole bool
	// Options says that the mount table has changed, so options of mounts may have changed too. The kernel does not say for
	// which mount. If no mount has come or gone at the same time, one was remounted. [Mounter.Lookup] has the options of
	// each.
	Options bool
}

// Watch calls changed for each change of the mount table, until ctx ends, and then returns an error that matches ctx's. It
// runs in the goroutine of the caller and starts nothing that outlives it; it sleeps while nothing happens. Another error
// says that watching is not possible, or no longer.
//
// Changes that come within a few milliseconds are reported together, so a burst of mounts costs little.
//
// The first call, with Whole set, comes when watching has begun. So nothing is missed between an earlier look at the table
// and the first change. Calls come one after the other. The next call has all changes that came during the last one. If
// these are more than the kernel keeps (16,384 events), Whole is set.
//
// Watch reports all changes in the mount namespace of the process, by whatever process. The kernel does not report changes
// to a filesystem other than by mount(2), nor renames of directories above a mount point.
func (m *Mounter) Watch(ctx context.Context, changed func(TableChange)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the mount table was not watched: %w: %w", ErrTransient, err)
	}
	if err := m.reader.watch(ctx, changed); err != nil {
		return fmt.Errorf("watching the mount table: %w", err)
	}
	return fmt.Errorf("watching the mount table has ended: %w", ctx.Err())
}
