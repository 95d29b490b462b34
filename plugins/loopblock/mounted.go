package loopblock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// checkStagingPath refuses every path that is not one of a staging directory of ours.
func (p *Plugin) checkStagingPath(path string) error {
	dir, name := filepath.Split(path)
	if filepath.Clean(dir) == p.mountsDir() && checkHandle(name) == nil {
		return nil
	}
	return fmt.Errorf("%q is not a staging directory in %q: %w", path, p.mountsDir(), volume.ErrInvalid)
}

// deviceAt makes sure that the device at path has the image of handle.
func (p *Plugin) deviceAt(ctx context.Context, handle, path string) (loop.Device, error) {
	device, err := p.loops.Inspect(ctx, path)
	if err != nil {
		return loop.Device{}, err
	}
	info, err := withImage(ctx, p, handle, (*os.File).Stat)
	if err == nil && !device.Has(info) {
		err = fmt.Errorf("%s has %q and not the image of volume %q: %w", path, device.BackingPath, handle, mount.ErrForeign)
	}
	return device, err
}

// mountAt returns what is mounted at path: of several mounts the uppermost.
func (p *Plugin) mountAt(ctx context.Context, path string) (there mount.MountPoint, mounted bool, err error) {
	there, err = p.mounter.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return mount.MountPoint{}, false, nil
	}
	return there, err == nil, err
}

// takeOff unmounts dir and removes it. Whatever this plugin mounts shows the whole filesystem on a loop device that is ours;
// anything else is somebody else's, on top of ours or in its place.
func (p *Plugin) takeOff(ctx context.Context, dir, handle string) error {
	there, mounted, err := p.mountAt(ctx, dir)
	if err != nil {
		return err
	}
	if mounted && !loop.IsMountOfAny(there) {
		return fmt.Errorf("%s %q is mounted at %q, and no loop device: unmount it if you know whose it is: %w",
			there.FSType, there.Source, dir, mount.ErrForeign)
	}
	if mounted {
		if err := p.checkOwner(ctx, there, handle); err != nil {
			return err
		}
	}
	// Not the ids: what is stacked below and shows the same device is ours, too.
	expect := mount.Identity{
		Major: there.Major, Minor: there.Minor, Root: there.Root, FSType: there.FSType, Source: there.Source,
	}
	err = mount.UnmountPath(ctx, p.mounter, dir, mount.UnmountOptions{Expect: expect})
	if errors.Is(err, syscall.ENOTEMPTY) {
		return errors.Join(err, volume.ErrDirectoryKept)
	}
	return err
}

// answerLimit is how long a device and the images' filesystem are waited for before a teardown. They answer in microseconds.
const answerLimit = 250 * time.Millisecond

// checkOwner refuses a mount of a loop device that has not the image of a volume; of any volume, where handle is empty. What
// cannot be found out is no refusal: a teardown is what helps where the filesystem of the images is dead.
func (p *Plugin) checkOwner(ctx context.Context, there mount.MountPoint, handle string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	device, err := p.loops.Inspect(ctx, there.Source)
	if err == nil && !device.IsMountedAs(there) {
		err = fmt.Errorf("%s is another device by now: %w", there.Source, loop.ErrNotAttached)
	}
	is := true
	if err == nil {
		is, err = p.has(ctx, device, handle)
	}
	if err != nil {
		p.logger.Warn("it is not known whose file the loop device has, and it is unmounted all the same",
			"device", there.Source, "path", there.Path, "err", err)
		return nil
	}
	if !is {
		return fmt.Errorf("%s, which has %q, is mounted at %q, and that is no image of this volume: unmount it if you know whose it is: %w",
			device.Path, device.BackingPath, there.Path, mount.ErrForeign)
	}
	return nil
}

// has reports whether a device has the image of a volume; of any volume, where handle is empty. An image is known by the label
// that Attach gives to a device, which stays when the image is deleted, or the images are kept elsewhere from now on; and by its
// file, where somebody else has attached it.
func (p *Plugin) has(ctx context.Context, d loop.Device, handle string) (bool, error) {
	mark := label(handle)
	if d.IsLabelled(mark) || handle == "" && strings.HasPrefix(d.Label, mark) {
		return true, nil
	}
	handle = cmp.Or(handle, strings.TrimSuffix(filepath.Base(d.BackingPath), imageSuffix))
	info, err := withImage(ctx, p, handle, (*os.File).Stat)
	if errors.Is(err, fs.ErrNotExist) {
		return d.BackingPath == p.shownPath(handle), nil
	}
	return err == nil && d.Has(info), err
}
