package hostpath

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// mounter checks one host path for one pod.
type mounter struct {
	volume.MetricsNil
	plugin   *Plugin
	name     string
	path     string
	want     v1.HostPathType
	readOnly bool
}

var (
	_ volume.Mounter     = (*mounter)(nil)
	_ volume.ApartKeeper = (*mounter)(nil)
)

// GetPath implements [volume.Volume]: it is the host path itself.
func (m *mounter) GetPath() string { return filepath.Clean(m.path) }

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt implements [volume.Mounter]. A host path is used where it is: any other dir is an error that matches
// volume.ErrUnsupported.
func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if filepath.Clean(dir) != m.GetPath() {
		return fmt.Errorf("host path volume %q cannot be set up at %s: bind %s instead: %w",
			m.name, dir, m.path, volume.ErrUnsupported)
	}
	if err := checkSyntax(m.path, m.want); err != nil {
		return fmt.Errorf("host path volume %q: %w", m.name, err)
	}
	if _, err := mount.RunAbandonable(ctx, "stat", m.path, func() (string, error) { return m.check(ctx) }); err != nil {
		return fmt.Errorf("host path volume %q: %w", m.name, err)
	}
	return nil
}

// check returns what the path leads to. It touches the filesystem, which may hang.
func (m *mounter) check(ctx context.Context) (string, error) {
	resolved, err := m.plugin.apart(m.GetPath())
	if err != nil {
		return "", err
	}
	return resolved, m.plugin.checkType(ctx, m.GetPath(), m.want)
}

// KeptApart implements [volume.ApartKeeper].
func (m *mounter) KeptApart() []string { return m.plugin.protected }

// GetAttributes implements [volume.Mounter]. The content belongs to the node, so that ownership is left alone.
func (m *mounter) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: m.readOnly} }

// unmounter has nothing to take away.
type unmounter struct {
	volume.MetricsNil
	path string
}

var _ volume.Unmounter = (*unmounter)(nil)

// GetPath implements [volume.Volume].
func (u *unmounter) GetPath() string { return u.path }

// TearDown implements [volume.Unmounter]: nothing was made that does not belong to the node.
func (u *unmounter) TearDown(context.Context) error { return nil }

// TearDownAt implements [volume.Unmounter], as TearDown does.
func (u *unmounter) TearDownAt(context.Context, string) error { return nil }
