package loopblock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// mounts are what is mounted of images: staged in one directory, and bound for pods elsewhere.
type mounts struct {
	dir     string // of the staging directories
	mounter mount.Interface
	devices *devices
	logger  *slog.Logger
}

// stagingPath is where a volume is staged.
func (m *mounts) stagingPath(handle string) string { return filepath.Join(m.dir, handle) }

// checkPath refuses every path that is not one of a staging directory of ours.
func (m *mounts) checkPath(path string) error {
	dir, name := filepath.Split(path)
	if filepath.Clean(dir) == m.dir && checkHandle(name) == nil {
		return nil
	}
	return fmt.Errorf("%q is not a staging directory in %q: %w", path, m.dir, volume.ErrInvalid)
}

// at returns what is mounted at path: of several mounts the uppermost.
func (m *mounts) at(ctx context.Context, path string) (there mount.MountPoint, mounted bool, err error) {
	there, err = m.mounter.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return mount.MountPoint{}, false, nil
	}
	return there, err == nil, err
}

// openStaged opens the root of what is staged of a volume, and returns it with its mount. While it is open, it stays mounted. None
// of a loop device is an error that matches mount.ErrNotMounted. That the directory is in another mount than the one that is
// found there is an error that matches volume.ErrTransient.
func (m *mounts) openStaged(ctx context.Context, handle string) (*os.File, mount.MountPoint, error) {
	path := m.stagingPath(handle)
	if _, err := m.ofLoop(ctx, path); err != nil { // the root of another filesystem may not even open
		return nil, mount.MountPoint{}, err
	}
	root, err := os.Open(path)
	if err != nil {
		return nil, mount.MountPoint{}, err
	}
	there, err := m.ofLoop(ctx, path)
	is := false
	if err == nil {
		is, err = there.IsRoot(root)
	}
	if err == nil && !is {
		err = fmt.Errorf("what is mounted at %q has just changed: %w", path, volume.ErrTransient)
	}
	if err != nil {
		return nil, mount.MountPoint{}, errors.Join(err, root.Close())
	}
	return root, there, nil
}

// ofLoop returns the mount of a loop device at path. Another one, or none, is an error that matches mount.ErrNotMounted.
func (m *mounts) ofLoop(ctx context.Context, path string) (mount.MountPoint, error) {
	there, err := m.mounter.Lookup(ctx, path)
	if err == nil && !loop.IsMountOfAny(there) {
		err = fmt.Errorf("%s at %q is of no loop device: %w", there.FSType, path, mount.ErrNotMounted)
	}
	return there, err
}

// unmountOwn unmounts dir and removes it. Whatever this plugin mounts shows the whole filesystem on a loop device that is ours;
// anything else is foreign, on top of ours or in its place.
func (m *mounts) unmountOwn(ctx context.Context, dir, handle string) error {
	there, mounted, err := m.at(ctx, dir)
	if err != nil {
		return err
	}
	if mounted && !loop.IsMountOfAny(there) {
		return fmt.Errorf("%s %q is mounted at %q, and no loop device: unmount it if you know whose it is: %w",
			there.FSType, there.Source, dir, mount.ErrForeign)
	}
	if mounted {
		if err := m.checkOwner(ctx, there, handle); err != nil {
			return err
		}
	}
	// Not the ids: what is stacked below and shows the same device is ours, too.
	expect := mount.Identity{
		Major: there.Major, Minor: there.Minor, Root: there.Root, FSType: there.FSType, Source: there.Source,
	}
	err = mount.UnmountPath(ctx, m.mounter, dir, mount.UnmountOptions{Expect: expect})
	if errors.Is(err, syscall.ENOTEMPTY) {
		return errors.Join(err, volume.ErrDirectoryKept)
	}
	return err
}

// answerLimit is how long a device and the images' filesystem are waited for before a teardown. They answer in microseconds.
const answerLimit = 250 * time.Millisecond

// checkOwner refuses a mount of a loop device that has not the image of a volume; of any volume, where handle is empty. What
// cannot be found out is no refusal: a teardown is what helps where the filesystem of the images is dead.
func (m *mounts) checkOwner(ctx context.Context, there mount.MountPoint, handle string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	device, err := m.devices.loops.Inspect(ctx, there.Source)
	if err == nil && !device.IsMountedAs(there) {
		err = fmt.Errorf("%s is another device by now: %w", there.Source, loop.ErrNotAttached)
	}
	is := true
	if err == nil {
		is, err = m.devices.has(ctx, device, handle)
	}
	if err != nil {
		m.logger.Warn("it is not known whose file the loop device has, and it is unmounted all the same",
			"device", there.Source, "path", there.Path, "error", err)
		return nil
	}
	if !is {
		return fmt.Errorf("%s, which has %q, is mounted at %q, and that is no image of this volume: unmount it if you know whose it is: %w",
			device.Path, device.BackingPath, there.Path, mount.ErrForeign)
	}
	return nil
}
