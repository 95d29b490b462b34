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

// The modes of what is provisioned. No other user of the node comes through the base, and so a volume, which gets
// no fsGroup, can be for every user of a pod.
const (
	baseMode   = 0o700
	volumeMode = 0o777
)

// nameInBase returns the name of path, relative to the base directory. Everything outside of the base, and the base itself, is
// an error that matches volume.ErrInvalid. Only the text counts here: that no link and no mount leads out again is seen to
// by who uses the name.
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

// resolveBase returns what the base directory leads to, unless that is one of the node's own directories.
func (p *Plugin) resolveBase(ctx context.Context) (string, error) {
	return mount.RunAbandonable(ctx, "stat", p.baseDir, func() (string, error) { return p.apart(p.baseDir) })
}

// makeVolume makes a directory in the base, or takes the one of an earlier call, which may not have come to give it its mode.
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

// inUse makes what says that a directory cannot be removed now match volume.ErrInUse.
func inUse(err error) error {
	if errors.Is(err, safepath.ErrMounted) || errors.Is(err, safepath.ErrRaced) {
		return errors.Join(err, volume.ErrInUse)
	}
	return err
}
