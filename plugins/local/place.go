package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// place is what was found at the path of a volume.
type place struct {
	// path is free of symbolic links.
	path string
	// isDevice is true for a block device; else it is a directory.
	isDevice bool
	// major and minor are the number of the device.
	major, minor uint32
}

// find looks what is at the path of a volume. Anything but a directory or a block device, and a path that leads to the
// node's own directories, is an error that matches volume.ErrInvalid.
func (p *Plugin) find(ctx context.Context, src source) (place, error) {
	found, err := mount.LeaveBehind(ctx, "stat", src.path, func() (place, error) { return lookAt(src.path, p.protected) })
	switch {
	case err == nil:
		return found, nil
	case errors.Is(err, safepath.ErrOverlap):
		err = fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	}
	return place{}, fmt.Errorf("local volume %q: %w", src.name, err)
}

func lookAt(path string, protected []string) (place, error) {
	resolved, err := safepath.ResolveApart(path, protected...)
	if err != nil {
		return place{}, err
	}
	info, err := os.Lstat(resolved) // Not Stat: what has become a link since is none of ours.
	if err != nil {
		return place{}, err
	}
	switch {
	case info.IsDir():
		return place{path: resolved}, nil
	case info.Mode().Type() == fs.ModeDevice: // A character device has another bit, too.
		major, minor, err := numberOf(info)
		return place{path: resolved, isDevice: true, major: major, minor: minor}, err
	}
	return place{}, fmt.Errorf("%s is neither a directory nor a block device: %w", path, volume.ErrInvalid)
}

// isShownBy reports whether a mount shows the volume: a directory by the bind at its path, a device by its whole filesystem.
func (p *Plugin) isShownBy(ctx context.Context, found place, there mount.MountPoint) (bool, error) {
	switch {
	case !found.isDevice:
		return mount.LeaveBehind(ctx, "stat", there.Path, func() (bool, error) { return p.isSame(found.path, there.Path) })
	case there.FSType == "btrfs": // It has a number of its own in the mount table.
		return there.Root == "/" && there.Source == found.path, nil
	}
	return there.Root == "/" && there.Major == found.major && there.Minor == found.minor, nil
}

// sameFile reports whether two paths lead to one file.
func sameFile(a, b string) (bool, error) {
	first, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	second, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(first, second), nil
}
