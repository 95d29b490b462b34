package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// Mounter is the [Interface] of the kernel. It may be used by several goroutines at once and needs no closing. Two
// Mounters know nothing of each other's abandoned calls, so a program should have one.
type Mounter struct {
	calls   *abandonable.Calls
	reader  *reader
	changer changer
	helpers *helpers
}

var _ Interface = (*Mounter)(nil)

// New returns a Mounter. It starts nothing and looks at nothing.
func New(options Options) *Mounter {
	reader := newReader(options.Without)
	changer := changer{reader}
	return &Mounter{
		calls: newCalls(options), reader: reader, changer: changer,
		helpers: &helpers{
			reader: reader, changer: changer,
			programs: maps.Clone(options.Helpers), dir: cmp.Or(options.HelperDir, defaultHelperDir),
		},
	}
}

// Abandoned returns the calls that were abandoned and are still in the kernel, ordered by path.
func (m *Mounter) Abandoned() []AbandonedCall { return abandonedCalls(m.calls) }

// Mount mounts request.Source at request.Target; see [Interface].
func (m *Mounter) Mount(ctx context.Context, request Request) error {
	plan, err := request.Plan()
	if err != nil {
		return err
	}
	return m.calls.Do(ctx, abandonable.Key{Path: plan.Target}, func(ctx context.Context) error {
		return m.mount(ctx, plan)
	})
}

// Unmount takes off every mount at target; see [Interface].
func (m *Mounter) Unmount(ctx context.Context, target string, options UnmountOptions) error {
	target, err := cleanPath("target", target)
	if err != nil {
		return err
	}
	return m.calls.Do(ctx, abandonable.Key{Path: target}, func(ctx context.Context) error {
		return m.unmount(ctx, target, options)
	})
}

// UnmountHung is Unmount for a target on which an earlier call hangs, of this process or another. It does not wait for that
// call, because it is to end it. options.Expect must say which mount is meant; otherwise the error matches [ErrInvalid]. With Force the
// callers of a dead server fail and return; with Lazy alone they hang on, and the mount is out of the tree. At most one call
// of it runs for each target.
func (m *Mounter) UnmountHung(ctx context.Context, target string, options UnmountOptions) error {
	target, err := cleanPath("target", target)
	if err != nil {
		return err
	}
	if options.Expect == (Identity{}) {
		return fmt.Errorf("unmounting %q, which hangs: say which mount is meant: %w", target, ErrInvalid)
	}
	return m.calls.Do(ctx, abandonable.Key{Beside: true, Path: target}, func(ctx context.Context) error {
		return m.unmount(ctx, target, options)
	})
}

// SyncFS writes all that is dirty of the filesystem that is mounted at target, also what was written through its other
// mounts (syncfs(2), whose errno the error matches). It returns the error of an earlier write that no call has returned yet;
// the unmount of a filesystem never does. When nothing is mounted at target, the error matches [ErrNotMounted].
func (m *Mounter) SyncFS(ctx context.Context, target string) error {
	target, err := cleanPath("target", target)
	if err != nil {
		return err
	}
	return m.calls.Do(ctx, abandonable.Key{Look: true, Path: target}, func(ctx context.Context) error {
		if err := m.syncFS(ctx, target); err != nil {
			return fmt.Errorf("writing what is dirty at %q: %w", target, err)
		}
		return nil
	})
}

// RemoveTarget removes the mount point name; see [Interface].
func (m *Mounter) RemoveTarget(ctx context.Context, name string) error {
	name, err := cleanPath("path", name)
	if err != nil {
		return err
	}
	return m.calls.Do(ctx, abandonable.Key{Path: name}, func(ctx context.Context) error {
		return m.removeTarget(ctx, name)
	})
}

// IsMountPoint reports whether something is mounted at name itself; see [Interface]. While an earlier look at the same
// path has not returned, it reads the mount table instead.
func (m *Mounter) IsMountPoint(ctx context.Context, name string) (bool, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("%q was not looked at: %w: %w", name, ErrTransient, err)
	}
	is, err := m.reader.isMountPointCached(name)
	if !errors.Is(err, errWouldWait) {
		return is, err
	}
	is, err = abandonable.Value(ctx, m.calls, abandonable.Key{Look: true, Path: name}, func(ctx context.Context) (bool, error) {
		return m.reader.isMountPoint(ctx, name)
	})
	if errors.Is(err, ErrStuck) {
		return m.reader.isInTable(ctx, name)
	}
	return is, err
}

// Lookup returns the facts of the mount at name; see [Interface].
func (m *Mounter) Lookup(ctx context.Context, name string) (MountPoint, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return MountPoint{}, err
	}
	if err := ctx.Err(); err != nil {
		return MountPoint{}, fmt.Errorf("%q was not looked up: %w: %w", name, ErrTransient, err)
	}
	return m.lookup(ctx, name)
}

// LookupID returns the facts of the mount with the unique id, wherever it is, as they are at this moment. The error
// matches [ErrNotMounted] when there is no such mount in this mount namespace (any more), and [ErrUnsupported] where the
// kernel has no unique ids.
func (m *Mounter) LookupID(ctx context.Context, uniqueID uint64) (MountPoint, error) {
	if err := ctx.Err(); err != nil {
		return MountPoint{}, fmt.Errorf("mount %d was not looked at: %w: %w", uniqueID, ErrTransient, err)
	}
	found, err := m.reader.lookupID(uniqueID)
	if errors.Is(err, ErrUnsupported) {
		return m.reader.lookupIDInTable(ctx, uniqueID)
	}
	return found, err
}

// List returns the mount table; see [Interface]. It cannot be held up by a filesystem, so it is never abandoned.
//
// The table is kept, and every caller gets the same one, for as long as the kernel reports no change: so the slice
// and all that it points to are shared and must not be changed. Mounts, unmounts, moves and new options of a mount are seen
// at once, and from Linux 6.8 on also whether a filesystem on a block device has become read-only. Of some changes the
// kernel does not tell: propagation that is changed by mount(2), other options of a filesystem when they are changed by
// its own failure ("emergency_ro"), in another namespace or by fsconfig(2), and a rename of a directory above a mount point.
// These are seen after one second at the latest. [Mounter.Lookup] always asks the kernel.
func (m *Mounter) List(ctx context.Context) ([]MountPoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("the mount table was not read: %w: %w", ErrTransient, err)
	}
	return m.reader.listTable(ctx)
}

// GetMountRefs returns the other mounts of what is mounted at name; see [Interface].
func (m *Mounter) GetMountRefs(ctx context.Context, name string) ([]string, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%q was not looked at: %w: %w", name, ErrTransient, err)
	}
	return m.reader.mountRefs(ctx, name)
}
