package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// The modes of the base directory and of volumes. The base keeps other users of the node out. So a volume, whose group is never
// changed to fsGroup, can be open to every user of a pod.
const (
	baseMode   = 0o700
	volumeMode = 0o777
)

// nameInBase returns the name of path relative to the base directory. If path is outside of the base, or the base itself, the error
// matches volume.ErrInvalid. nameInBase compares only text: the caller must prevent that a link or mount leads out of the base.
func (p *Plugin) nameInBase(path string) (string, error) {
	if err := checkSyntax(path, ""); err != nil {
		return "", err
	}
	name, err := filepath.Rel(p.baseDir, path)
	if err == nil {
		err = safepath.CheckName(name)
	}
	if p.baseDir == "" || err != nil {
		return "", fmt.Errorf("%s does not lie in the base directory %q, and nothing else is recycled or deleted: %w",
			path, p.baseDir, volume.ErrInvalid)
	}
	return name, nil
}

// resolveBase returns the base directory with its links resolved. It is an error if that is one of the node's own directories.
func (p *Plugin) resolveBase(ctx context.Context) (string, error) {
	return mount.RunAbandonable(ctx, "stat", p.baseDir, func() (string, error) { return p.apart(p.baseDir) })
}

// makeVolume makes a directory in the base, or uses the one of an earlier call. It sets the mode then too, because the earlier call
// may have been killed before.
func (p *Plugin) makeVolume(ctx context.Context, name string) error {
	base, err := p.resolveBase(ctx)
	if err != nil {
		return err
	}
	_, err = p.files.MakeDirectory(ctx, base, name, volumeMode)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.files.MkdirApart(ctx, base, baseMode, p.protected...); err != nil {
		return notApart(err)
	}
	_, err = p.files.MakeDirectory(ctx, base, name, volumeMode)
	return err
}

// inUse makes errors of a directory that is still in use match volume.ErrInUse.
func inUse(err error) error {
	if errors.Is(err, safepath.ErrMounted) || errors.Is(err, safepath.ErrRaced) {
		return errors.Join(err, volume.ErrInUse)
	}
	return err
}
