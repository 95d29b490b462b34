package emptydir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

const (
	// mode lets every user write. With setgid, new files belong to the group of the volume.
	mode   = 0o777
	setgid = 0o2000
)

// mounter sets one volume up.
type mounter struct {
	*directory
	medium v1.StorageMedium
	limit  *resource.Quantity
	pod    *resource.Quantity // the memory limit of the pod; nil without one
	node   Node               // nil if the node's memory is not known
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
	if m.medium != v1.StorageMediumMemory {
		return m.makeVolume(ctx, dir, args.FsGroup)
	}
	err := m.mountMemory(ctx, dir, args)
	if errors.Is(err, mount.ErrMounted) {
		return m.adopt(ctx, dir)
	}
	return err
}

// makeVolume makes dir and its missing parents, beneath descriptors, unless an earlier call has made it. It refuses a
// symbolic link in the path, and an existing directory without a proof that this plugin made it.
func (m *mounter) makeVolume(ctx context.Context, dir string, group *int64) error {
	volumeDir := m.owned(dir)
	there, err := volumeDir.Open(ctx, m.paths())
	if err == nil {
		return errors.Join(there.Close(), m.checkNotMounted(ctx, dir))
	}
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, owned.ErrUnproven) {
		return errors.Join(m.checkNotMounted(ctx, dir), err)
	}
	root, err := safepath.OpenOrMake(ctx, filepath.Dir(dir), safepath.MkdirOptions{Mode: 0o750}, m.paths())
	if err != nil {
		return volume.Transient(err)
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	parent, err := root.Directory(ctx)
	if err != nil {
		return volume.Transient(err)
	}
	defer func() { _ = parent.Close() }() // likewise
	return makeDirectory(parent, dir, group, func(made *os.File) error { return volumeDir.Record(ctx, made, m.paths()) })
}

// checkGroup refuses an invalid group id.
func checkGroup(group *int64) error {
	if err := ownership.CheckGroup(group); err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	return nil
}

// checkNotMounted returns an error that matches mount.ErrForeign when something is mounted at dir.
func (m *mounter) checkNotMounted(ctx context.Context, dir string) error {
	mounted, err := m.mount.IsMountPoint(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if mounted {
		err = fmt.Errorf("something is mounted at %s, where a directory belongs: unmount it: %w", dir, mount.ErrForeign)
	}
	return err
}

// adopt accepts an existing mount if this plugin made it for this volume.
func (m *mounter) adopt(ctx context.Context, dir string) error {
	found, err := m.mount.Lookup(ctx, dir)
	if err != nil {
		return err
	}
	if err := checkOurs(dir, found); err != nil {
		return err
	}
	mount.ReportMade(ctx, dir, found)
	return nil
}

// mountMemory mounts a tmpfs, and makes its directory.
func (m *mounter) mountMemory(ctx context.Context, dir string, args volume.MounterArgs) error {
	allocatable, err := m.allocatable(ctx)
	if err != nil {
		return err
	}
	size := smallest(m.limit, args.DesiredSize, m.pod, allocatable)
	return mount.MountMemory(ctx, m.mount, dir, memoryOptions(size, args.FsGroup)...)
}

func memoryOptions(size int64, group *int64) []string {
	options := []string{"nosuid", "nodev"}
	if group == nil {
		options = append(options, "mode="+strconv.FormatUint(mode, 8))
	} else {
		options = append(options,
			"mode="+strconv.FormatUint(mode|setgid, 8), "gid="+strconv.FormatInt(*group, 10))
	}
	if size > 0 {
		options = append(options, "size="+strconv.FormatInt(size, 10))
	}
	return options
}

// GetAttributes implements [volume.Mounter].
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{Managed: true, SupportsSELinux: true}
}

// unmounter removes one volume.
type unmounter struct{ *directory }

var _ volume.Unmounter = (*unmounter)(nil)

// TearDown implements [volume.Unmounter].
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.path) }

// TearDownAt implements [volume.Unmounter]. An error that matches volume.ErrInUse says that something is mounted inside the
// volume, or that a process still writes to it.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	if err := u.tearDown(ctx, dir); err != nil {
		return fmt.Errorf("emptyDir volume %q: %w", u.name, err)
	}
	return nil
}

func (u *unmounter) tearDown(ctx context.Context, dir string) error {
	unmounted, err := u.unmount(ctx, dir)
	if err != nil {
		return err
	}
	if !unmounted { // An incomplete directory was never given to a pod, so it needs no proof.
		if err := u.mount.RemoveTarget(ctx, partial(dir)); err != nil {
			return err
		}
	}
	return inUse(u.owned(dir).Remove(ctx, u.mount))
}

// unmount unmounts the tmpfs at dir if it is proven to be the plugin's, and no other mount. It returns false if nothing was
// mounted.
func (u *unmounter) unmount(ctx context.Context, dir string) (unmounted bool, err error) {
	err = u.mount.Unmount(ctx, dir, mount.UnmountOptions{Expect: mount.MemoryIdentity(dir)})
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		return false, nil
	case errors.Is(err, syscall.EBUSY):
		err = errors.Join(err, volume.ErrInUse)
	}
	return err == nil, err
}

// inUse makes errors of a directory that is still in use match volume.ErrInUse.
func inUse(err error) error {
	for _, busy := range []error{safepath.ErrMounted, safepath.ErrRaced, syscall.ENOTEMPTY} {
		if errors.Is(err, busy) {
			return errors.Join(err, volume.ErrInUse)
		}
	}
	return err
}

// owned returns the directory dir of the volume with its proof. The proof is in the plugin's own directory of the pod.
func (d *directory) owned(dir string) owned.Directory {
	name := d.name
	if dir != d.path { // the caller chose the path (SetUpAt)
		sum := sha256.Sum256([]byte(dir))
		name += "." + hex.EncodeToString(sum[:8])
	}
	return owned.Directory{Path: dir, Proof: filepath.Join(d.proofs, name)}
}

// paths returns the options with which directories of volumes are opened.
func (d *directory) paths() safepath.Options { return safepath.Options{Mounter: d.mount} }

// checkOurs returns an error that matches mount.ErrForeign unless the mount found at dir is the tmpfs that this plugin
// mounted there.
func checkOurs(dir string, found mount.MountPoint) error {
	if mount.IsMemoryOf(dir, found) {
		return nil
	}
	return fmt.Errorf("a mount of %q (%s), which this plugin did not make, is at %s: unmount it: %w",
		found.Source, found.FSType, dir, mount.ErrForeign)
}
