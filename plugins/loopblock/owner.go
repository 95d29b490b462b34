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
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
)

// answerLimit is how long a device and the images' filesystem are waited for before a teardown. They answer in microseconds.
const answerLimit = 250 * time.Millisecond

// checkOwner refuses a mount of a loop device that has not the image of a volume; of any volume, where handle is empty. What
// cannot be found out is no refusal: a teardown is what helps where the filesystem of the images is dead.
func (p *Plugin) checkOwner(ctx context.Context, there mount.MountPoint, handle string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	device, err := p.loops.Inspect(ctx, there.Source)
	if err == nil && !isMountOf(there, device) {
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
	if d.Label == mark[:min(len(mark), maxLabel)] || handle == "" && strings.HasPrefix(d.Label, mark) {
		return true, nil
	}
	handle = cmp.Or(handle, strings.TrimSuffix(filepath.Base(d.BackingPath), imageSuffix))
	info, err := withImage(ctx, p, handle, (*os.File).Stat)
	if errors.Is(err, fs.ErrNotExist) {
		return d.BackingPath == p.shownPath(handle), nil
	}
	return err == nil && d.Has(info), err
}
