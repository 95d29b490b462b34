package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
	"github.com/volumekit/volumekit/volume/ownership"
)

const (
	// dirMode lets every user read.
	dirMode = 0o755
	// memoryOptions are the mount options of a tmpfs with that mode.
	memoryOptions = "mode=755"
	// undoTimeout bounds the undoing of a failed set-up, also if its context has ended.
	undoTimeout = 30 * time.Second
)

// mounter publishes the files of one volume.
type mounter struct {
	podDirectory
	source *v1.ProjectedVolumeSource
	pod    *v1.Pod
}

var _ volume.Mounter = (*mounter)(nil)

// GetAttributes implements [volume.Mounter]. The plugin sets the owners of the files, and containers can only read them.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: true, Managed: true, SupportsSELinux: true}
}

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.path, args)
}

// SetUpAt implements [volume.Mounter].
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := m.setUp(ctx, dir, args); err != nil {
		return fmt.Errorf("%s volume %q of pod %s/%s: %w", m.plugin.source, m.name, m.pod.Namespace, m.pod.Name, err)
	}
	return nil
}

func (m *mounter) setUp(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := ownership.CheckGroup(args.FsGroup); err != nil {
		return fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	}
	payload, err := m.collect(ctx, args)
	if err != nil {
		return volume.Transient(err)
	}
	made, err := m.make(ctx, dir, args)
	if err == nil {
		err = m.plugin.directories.Publish(ctx, dir, payload, args.FsGroup)
		if errors.Is(err, atomicwriter.ErrInvalid) {
			err = fmt.Errorf("%w: %w", err, volume.ErrInvalid)
		}
		if err != nil && !made {
			return volume.Uncertain(err) // The volume existed before, and stays.
		}
	}
	if made && err != nil && !errors.Is(err, volume.ErrUncertain) {
		return m.undo(ctx, dir, err)
	}
	return err
}

// undo removes the new volume after a set-up that has failed with err.
func (m *mounter) undo(ctx context.Context, dir string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if left := m.remove(ctx, dir); left != nil {
		return volume.Uncertain(errors.Join(err, left))
	}
	return err
}

// make makes the directory of the volume. It reports whether the directory was missing before.
func (m *mounter) make(ctx context.Context, dir string, args volume.MounterArgs) (made bool, err error) {
	if m.plugin.inMemory {
		return m.mountMemory(ctx, dir, args)
	}
	there, err := m.plugin.mount.Lookup(ctx, dir)
	if err == nil {
		err = foreign(dir, there)
	}
	if !errors.Is(err, mount.ErrNotMounted) {
		return false, err
	}
	if directories, ok := m.plugin.directories.(ownedDirectories); ok {
		return directories.MakeOwned(ctx, m.owned(dir), dirMode)
	}
	return m.plugin.directories.MakeDirectory(ctx, filepath.Dir(dir), filepath.Base(dir), dirMode)
}

// mountMemory mounts a tmpfs unless it is mounted already. It reports whether it has mounted one.
func (m *mounter) mountMemory(ctx context.Context, dir string, args volume.MounterArgs) (made bool, err error) {
	if args.IsRemount || args.ReconstructedVolume { // The volume is then most often mounted already.
		if err := m.adopt(ctx, dir); !errors.Is(err, mount.ErrNotMounted) {
			return false, err
		}
	}
	err = mount.MountMemory(ctx, m.plugin.mount, dir, memoryOptions, "nosuid", "nodev")
	if errors.Is(err, mount.ErrMounted) {
		return false, m.adopt(ctx, dir)
	}
	return err == nil, err
}

// adopt accepts an existing mount if this plugin made it for this volume.
func (m *mounter) adopt(ctx context.Context, dir string) error {
	there, err := m.plugin.mount.Lookup(ctx, dir)
	if err != nil {
		return err
	}
	if !mount.IsMemoryOf(dir, there) {
		return foreign(dir, there)
	}
	mount.ReportMade(ctx, dir, there)
	return nil
}

// foreign returns the error for a mount at the path of a volume that this plugin did not make.
func foreign(dir string, there mount.MountPoint) error {
	return fmt.Errorf("%q (%s), which this plugin did not mount, is at %s: unmount it: %w", there.Source, there.FSType, dir, mount.ErrForeign)
}

// remove removes the volume: it unmounts a tmpfs, and removes the directory.
func (at podDirectory) remove(ctx context.Context, dir string) error {
	if at.plugin.inMemory {
		return at.unmount(ctx, dir)
	}
	directories, proving := at.plugin.directories.(ownedDirectories)
	mounted, err := at.plugin.mount.IsMountPoint(ctx, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !proving:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case mounted:
		return fmt.Errorf("something is mounted at %s, where a directory belongs: unmount it first: %w", dir, mount.ErrForeign)
	case proving:
		return inUse(directories.RemoveOwned(ctx, at.owned(dir))) // also of one that something may hide
	}
	return inUse(at.plugin.directories.RemoveAll(ctx, filepath.Dir(dir), filepath.Base(dir)))
}

// owned returns the directory dir of the volume with its proof. The proof is in the plugin's own directory of the pod.
func (at podDirectory) owned(dir string) owned.Directory {
	name := at.name
	if dir != at.path { // the caller chose the path (SetUpAt)
		sum := sha256.Sum256([]byte(dir))
		name += "." + hex.EncodeToString(sum[:8])
	}
	return owned.Directory{Path: dir, Proof: filepath.Join(at.proofs, name)}
}

// prove returns an error unless SetUp made the directory or mount at the volume's path. An empty directory needs no proof.
func (at podDirectory) prove(ctx context.Context) error {
	there, err := at.plugin.mount.Lookup(ctx, at.path)
	if err == nil && at.plugin.inMemory && mount.IsMemoryOf(at.path, there) {
		return nil
	}
	if err == nil {
		return foreign(at.path, there)
	}
	if !errors.Is(err, mount.ErrNotMounted) {
		return err
	}
	directories, ok := at.plugin.directories.(ownedDirectories)
	if !ok {
		return nil // Directories of the embedder have no proofs.
	}
	return directories.Prove(ctx, at.owned(at.path))
}

// unmount unmounts the tmpfs of the volume if it is proven to be the plugin's, and no other mount.
func (at podDirectory) unmount(ctx context.Context, dir string) error {
	return inUse(mount.UnmountPath(ctx, at.plugin.mount, dir, mount.UnmountOptions{Expect: mount.MemoryIdentity(dir)}))
}

// inUse makes errors of a directory that is still in use match volume.ErrInUse.
func inUse(err error) error {
	for _, busy := range []error{syscall.EBUSY, safepath.ErrMounted, safepath.ErrRaced} {
		if errors.Is(err, busy) {
			return errors.Join(err, volume.ErrInUse)
		}
	}
	return err
}

// unmounter removes one volume.
type unmounter struct{ podDirectory }

var _ volume.Unmounter = (*unmounter)(nil)

// TearDown implements [volume.Unmounter].
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.path) }

// TearDownAt implements [volume.Unmounter]. It removes the files, which are copies.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	if err := u.remove(ctx, dir); err != nil {
		return fmt.Errorf("%s volume %q: %w", u.plugin.source, u.name, err)
	}
	return nil
}
