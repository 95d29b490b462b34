package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// target is the directory or block device at the path of a volume.
type target struct {
	// path is free of symbolic links.
	path string
	// isDevice is true for a block device; else it is a directory.
	isDevice bool
	// major and minor are the number of the device.
	major, minor uint32
	// readOnly is true for a device that cannot be written to.
	readOnly bool
}

// find returns the target of a volume. Any other kind of file, and a path that leads to the node's own directories, is an error
// that matches volume.ErrInvalid.
func (p *Plugin) find(ctx context.Context, src source) (target, error) {
	found, err := mount.RunAbandonable(ctx, "stat", src.path, func() (target, error) { return lookAt(src.path, p.protected) })
	switch {
	case err == nil:
		return found, nil
	case errors.Is(err, safepath.ErrOverlap):
		err = fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	}
	return target{}, fmt.Errorf("local volume %q: %w", src.name, err)
}

func lookAt(path string, protected []string) (target, error) {
	resolved, err := safepath.ResolveApart(path, protected...)
	if err != nil {
		return target{}, err
	}
	info, err := os.Lstat(resolved) // Not Stat: a link that came since is not followed.
	if err != nil {
		return target{}, err
	}
	switch {
	case info.IsDir():
		return target{path: resolved}, nil
	case info.Mode().Type() == fs.ModeDevice: // A character device has another bit, too.
		return deviceAt(resolved, info)
	}
	return target{}, fmt.Errorf("%s is neither a directory nor a block device: %w", path, volume.ErrInvalid)
}

func deviceAt(path string, info fs.FileInfo) (target, error) {
	major, minor, err := numberOf(info)
	if err != nil {
		return target{}, err
	}
	content, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/ro", major, minor))
	if err != nil {
		return target{}, fmt.Errorf("whether %s is read-only is not known: %w", path, err)
	}
	readOnly := strings.TrimSpace(string(content)) != "0"
	return target{path: path, isDevice: true, major: major, minor: minor, readOnly: readOnly}, nil
}

// checkWritable refuses to write to a disk that is read-only.
func (p target) checkWritable(src source) error {
	if p.readOnly && !src.podReadOnly {
		return fmt.Errorf("%s is read-only: ask for the volume read-only, or make the disk writable (blockdev --setrw): %w", p.path, syscall.EROFS)
	}
	return nil
}

// isShownBy reports whether a mount shows the volume: a directory by the bind at its path, a device by its whole filesystem.
func (p *Plugin) isShownBy(ctx context.Context, found target, there mount.MountPoint) (bool, error) {
	switch {
	case !found.isDevice:
		return mount.RunAbandonable(ctx, "stat", there.Path, func() (bool, error) { return p.isSame(found.path, there.Path) })
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
