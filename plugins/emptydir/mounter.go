package emptydir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

const (
	// fsType is the filesystem of volumes in memory.
	fsType = "tmpfs"
	// mode lets everybody write; with setgid new files belong to the group of the volume.
	mode   = 0o777
	setgid = 0o2000
)

// mounter sets one volume up.
type mounter struct {
	*directory
	medium v1.StorageMedium
	limit  *resource.Quantity
}

var _ volume.Mounter = (*mounter)(nil)

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.path, args)
}

// SetUpAt implements [volume.Mounter].
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := m.setUp(ctx, dir, args); err != nil {
		return fmt.Errorf("emptyDir volume %q: %w", m.name, err)
	}
	return nil
}

func (m *mounter) setUp(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := checkGroup(args.FsGroup); err != nil {
		return err
	}
	mounted, err := m.mounted(ctx, dir)
	if err != nil {
		return err
	}
	if mounted {
		return m.adopt(ctx, dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return volume.Transient(err)
	}
	if m.medium == v1.StorageMediumMemory {
		return mount.MountMemory(ctx, m.mount, dir, m.memoryOptions(args)...)
	}
	return makeDirectory(ctx, dir, args.FsGroup)
}

// checkGroup refuses what is no group id.
func checkGroup(group *int64) error {
	if err := ownership.CheckGroup(group); err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	return nil
}

// adopt accepts a mount that is there already, if it is what this volume makes.
func (m *mounter) adopt(ctx context.Context, dir string) error {
	if m.medium != v1.StorageMediumMemory {
		return fmt.Errorf("something is mounted at %s, where a directory belongs: %w", dir, mount.ErrForeign)
	}
	return m.ours(ctx, dir)
}

func (m *mounter) memoryOptions(args volume.MounterArgs) []string {
	options := []string{"nosuid", "nodev"}
	if args.FsGroup == nil {
		options = append(options, "mode="+strconv.FormatUint(mode, 8))
	} else {
		options = append(options,
			"mode="+strconv.FormatUint(mode|setgid, 8), "gid="+strconv.FormatInt(*args.FsGroup, 10))
	}
	if size := smallest(m.limit, args.DesiredSize); size > 0 {
		options = append(options, "size="+strconv.FormatInt(size, 10))
	}
	return options
}

// smallest returns the smallest of the limits that are set, in bytes, and 0 when none is.
func smallest(limits ...*resource.Quantity) int64 {
	var least int64
	for _, limit := range limits {
		if limit == nil || limit.Sign() <= 0 {
			continue
		}
		if least == 0 || limit.Value() < least {
			least = limit.Value()
		}
	}
	return least
}

// GetAttributes implements [volume.Mounter].
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{Managed: true, SupportsSELinux: true}
}

// unmounter takes one volume away.
type unmounter struct{ *directory }

var _ volume.Unmounter = (*unmounter)(nil)

// TearDown implements [volume.Unmounter].
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.path) }

// TearDownAt implements [volume.Unmounter]. An error that matches volume.ErrInUse says that something is mounted inside,
// or that somebody still writes.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	if err := u.tearDown(ctx, dir); err != nil {
		return fmt.Errorf("emptyDir volume %q: %w", u.name, err)
	}
	return nil
}

func (u *unmounter) tearDown(ctx context.Context, dir string) error {
	mounted, err := u.mounted(ctx, dir)
	if err != nil {
		return err
	}
	if mounted {
		if err := u.unmount(ctx, dir); err != nil {
			return err
		}
	}
	for _, path := range []string{partial(dir), dir} {
		if err := u.remove(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// unmount takes the tmpfs off dir.
func (u *unmounter) unmount(ctx context.Context, dir string) error {
	if err := u.ours(ctx, dir); err != nil {
		return err
	}
	err := u.mount.Unmount(ctx, dir, mount.UnmountOptions{})
	switch {
	case err == nil, errors.Is(err, mount.ErrNotMounted):
		return nil
	case errors.Is(err, syscall.EBUSY):
		return errors.Join(err, volume.ErrInUse)
	}
	return err
}

// remove removes the directory at path with its content, if it is there.
func (u *unmounter) remove(ctx context.Context, path string) error {
	// Most are empty, and a directory that is not says so without harm.
	err := u.mount.RemoveTarget(ctx, path)
	if err == nil || !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return u.removeTree(ctx, path)
}

// removeTree removes the directory at path and all that is in it; see [safepath.Root.RemoveAll].
func (d *directory) removeTree(ctx context.Context, path string) error {
	err := safepath.RemoveTree(ctx, path, safepath.Options{Mounter: d.mount})
	if errors.Is(err, safepath.ErrMounted) || errors.Is(err, safepath.ErrRaced) {
		return errors.Join(err, volume.ErrInUse)
	}
	return err
}

// mounted reports whether something is mounted at dir, which need not exist.
func (d *directory) mounted(ctx context.Context, dir string) (bool, error) {
	mounted, err := d.mount.IsMountPoint(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// ours returns an error that matches mount.ErrForeign unless all that is mounted at dir is the whole of a tmpfs.
func (d *directory) ours(ctx context.Context, dir string) error {
	table, err := d.mount.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range table {
		if m.Path == dir && (m.FSType != fsType || m.Root != "/") {
			return fmt.Errorf("a mount of %s (%s) is at %s: unmount it first: %w", m.Root, m.FSType, dir, mount.ErrForeign)
		}
	}
	return nil
}
