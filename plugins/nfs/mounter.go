package nfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// mounter mounts one export for one pod.
type mounter struct {
	podDirectory
	export  export
	options []string // the options of the PersistentVolume
}

var _ volume.Mounter = (*mounter)(nil)

// GetAttributes implements [volume.Mounter]. The server decides about the owners of files, so the volume is not managed.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.export.readOnly}
}

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.path, args)
}

// SetUpAt implements [volume.Mounter].
func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if err := m.setUp(ctx, dir); err != nil {
		return fmt.Errorf("nfs volume %q, %s: %w", m.name, volume.Quote(m.export.device()), err)
	}
	return nil
}

func (m *mounter) setUp(ctx context.Context, dir string) error {
	found, err := m.plugin.options.Mounter.Lookup(ctx, dir)
	switch {
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, fs.ErrNotExist):
		return m.plugin.mount(ctx, m.export, m.options, dir)
	case err != nil:
		return err
	case !isNFS(found) || found.Source != m.export.device():
		return fmt.Errorf("%s (%s) is mounted at %s: unmount it first: %w", volume.Quote(found.Source), found.FSType, dir, mount.ErrForeign)
	}
	return m.adopt(ctx, dir, found)
}

// adopt accepts an existing mount if the server knows its handle. If the server does not know the handle (ESTALE), the
// export may only be withdrawn for the moment. So adopt first proves, by a second mount, that the server gives the export.
// Then the handle stays stale for ever, and adopt mounts the export anew.
func (m *mounter) adopt(ctx context.Context, dir string, found mount.MountPoint) error {
	_, err := m.GetMetrics(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, volume.ErrUnsupported):
		return nil // This error does not come from a server. The volume is mounted.
	case !errors.Is(err, syscall.ESTALE):
		return err
	}
	if err := m.isGiven(ctx); err != nil {
		return fmt.Errorf("its handle is stale, and it is left as it is, since it cannot be mounted anew: %w", volume.Uncertain(err))
	}
	if err := mount.UnmountPath(ctx, m.plugin.options.Mounter, dir, m.plugin.unmountOptions(found.Identity())); err != nil {
		return fmt.Errorf("its handle is stale, and it cannot be unmounted: %w", err)
	}
	return m.plugin.mount(ctx, m.export, m.options, dir)
}

// isGiven returns nil if the export can be mounted. It tries this in another directory.
func (m *mounter) isGiven(ctx context.Context) error {
	if err := m.unmountAside(ctx); err != nil { // A killed process may have mounted it.
		return err
	}
	if err := m.plugin.mount(ctx, m.export, m.options, m.asidePath()); err != nil {
		return err
	}
	return m.unmountAside(ctx)
}

// asidePath is the path at which isGiven mounts the export, in the plugin's directory.
func (p podDirectory) asidePath() string {
	sum := sha256.Sum256([]byte(p.path))
	return filepath.Join(p.plugin.host.GetPluginDir(Name), "aside", hex.EncodeToString(sum[:16]))
}

func (p podDirectory) unmountAside(ctx context.Context) error {
	return mount.UnmountPath(ctx, p.plugin.options.Mounter, p.asidePath(), p.plugin.unmountOptions(mount.Identity{}))
}

// unmounter unmounts an export from one pod.
type unmounter struct{ podDirectory }

var _ volume.Unmounter = (*unmounter)(nil)

// TearDown implements [volume.Unmounter].
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.path) }

// TearDownAt implements [volume.Unmounter]. The only call to the server is the one that writes cached data.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	if err := u.tearDown(ctx, dir); err != nil {
		return fmt.Errorf("nfs volume %q: %w", u.name, err)
	}
	return nil
}

func (u *unmounter) tearDown(ctx context.Context, dir string) error {
	stack, err := mount.Stack(ctx, u.plugin.options.Mounter, dir)
	if err != nil {
		return err
	}
	for _, m := range stack {
		if !isNFS(m) {
			return fmt.Errorf("%s (%s) is mounted at %s: unmount it first: %w", volume.Quote(m.Source), m.FSType, dir, mount.ErrForeign)
		}
	}
	if err := u.unmountAside(ctx); err != nil {
		return err
	}
	err = mount.UnmountPath(ctx, u.plugin.options.Mounter, dir, u.plugin.unmountOptions(mount.Identity{}))
	switch {
	case errors.Is(err, syscall.EBUSY):
		return errors.Join(err, volume.ErrInUse)
	case errors.Is(err, syscall.ENOTEMPTY):
		return errors.Join(err, volume.ErrDirectoryKept)
	}
	return err
}

func (p *Plugin) unmountOptions(expect mount.Identity) mount.UnmountOptions {
	return mount.UnmountOptions{Force: p.options.ForceAfter, Lazy: p.options.Lazy, Expect: expect}
}
