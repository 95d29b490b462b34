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
	// path has no symbolic links.
	path string
	// isDevice is true for a block device, and false for a directory.
	isDevice bool
	// major and minor are the device number.
	major, minor uint32
	// readOnly is true if the kernel does not write to the device.
	readOnly bool
}

// find returns the target of a volume. If the path leads to another kind of file or overlaps a protected directory, such as the
// node's own, the error matches volume.ErrInvalid.
func (p *Plugin) find(ctx context.Context, src source) (target, error) {
	found, err := mount.RunAbandonable(ctx, "stat", src.path, func() (target, error) { return targetAt(src.path, p.protected) })
	switch {
	case err == nil:
		return found, nil
	case errors.Is(err, safepath.ErrOverlap):
		err = fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	}
	return target{}, fmt.Errorf("local volume %q: %w", src.name, err)
}

func targetAt(path string, protected []string) (target, error) {
	resolved, err := safepath.ResolveApart(path, protected...)
	if err != nil {
		return target{}, err
	}
	info, err := os.Lstat(resolved) // not Stat, which would follow a link that was made meanwhile
	if err != nil {
		return target{}, err
	}
	switch {
	case info.IsDir():
		return target{path: resolved}, nil
	case info.Mode().Type() == fs.ModeDevice: // A character device has fs.ModeCharDevice, too.
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
		return target{}, fmt.Errorf("cannot read whether %s is read-only: %w", path, err)
	}
	readOnly := strings.TrimSpace(string(content)) != "0"
	return target{path: path, isDevice: true, major: major, minor: minor, readOnly: readOnly}, nil
}

// checkWritable refuses a read-only disk for a pod that may write.
func (p target) checkWritable(src source) error {
	if p.readOnly && !src.podReadOnly {
		return fmt.Errorf("%s is read-only: request the volume read-only, or make the disk writable (blockdev --setrw): %w", p.path, syscall.EROFS)
	}
	return nil
}

// isShownBy reports whether a mount has the volume: a bind of its directory, or the whole filesystem of its device.
func (p *Plugin) isShownBy(ctx context.Context, found target, there mount.MountPoint) (bool, error) {
	switch {
	case !found.isDevice:
		return mount.RunAbandonable(ctx, "stat", there.Path, func() (bool, error) { return p.isSame(found.path, there.Path) })
	case there.FSType == "btrfs": // The mount table does not have the number of its device.
		return there.Root == "/" && there.Source == found.path, nil
	}
	return there.Root == "/" && there.Major == found.major && there.Minor == found.minor, nil
}

// sameFile reports whether two paths lead to the same file.
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
