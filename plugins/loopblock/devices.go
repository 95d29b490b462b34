package loopblock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// devices are the loop devices of images on this node. Its methods may be called from several goroutines at once.
type devices struct {
	images   images
	loops    *loop.Manager
	nodeName types.NodeName
	directIO bool
	logger   *slog.Logger
	limit    int64 // how many volumes can be attached; 0 means any number
	// attaching is the number of running calls of attach, which count for the limit.
	attaching atomic.Int64
	// attributeLocks are the locks for calls that read or change the attributes of a volume.
	attributeLocks attributeLocks
}

// attach attaches the image of a volume, or returns the device that it has, with the attributes of the volume.
func (v *devices) attach(ctx context.Context, src source) (loop.Device, error) {
	done, err := v.attributeLocks.lock(ctx, src.handle)
	if err != nil {
		return loop.Device{}, err
	}
	defer done()
	has, err := v.images.attributes(ctx, src.handle)
	if err != nil {
		return loop.Device{}, err
	}
	return withImage(ctx, v.images, src.handle, func(file *os.File) (loop.Device, error) {
		device, err := v.withinLimit(ctx, file, func() (loop.Device, error) {
			return v.loops.AttachFile(ctx, file, loop.AttachOptions{
				ReadOnly: src.readOnly, DirectIO: v.directIO, Label: label(src.handle),
			})
		})
		if err != nil || len(has) == 0 {
			return device, err
		}
		device, err = v.tuneWhereItCan(ctx, file, src.handle, has.tuning())
		return device, volume.Uncertain(err)
	})
}

// label is the label of this plugin's loop devices, by which a device is found when its image has no name any more.
func label(handle string) string { return Name + "/" + handle }

// find returns the device of an image. If there is none, the error matches loop.ErrNotAttached.
func (v *devices) find(ctx context.Context, handle string) (loop.Device, error) {
	device, err := withImage(ctx, v.images, handle, func(file *os.File) (loop.Device, error) {
		return v.loops.FindFile(ctx, file)
	})
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	return v.findDeleted(ctx, handle)
}

// findDeleted returns the device of an image that was deleted.
func (v *devices) findDeleted(ctx context.Context, handle string) (loop.Device, error) {
	all, err := v.loops.Devices(ctx)
	if err != nil {
		return loop.Device{}, err
	}
	found, err := v.among(ctx, all, handle)
	switch {
	case err != nil:
		return loop.Device{}, err
	case len(found) == 0:
		return loop.Device{}, fmt.Errorf("volume %q: %w", handle, loop.ErrNotAttached)
	case len(found) > 1:
		return loop.Device{}, fmt.Errorf("the image of volume %q is attached to %s and to %s: detach all but one: %w",
			handle, found[0].Path, found[1].Path, loop.ErrInUse)
	}
	return found[0], nil
}

// among returns the devices with the image of handle. If a device that does not answer may have it, that is an error.
func (v *devices) among(ctx context.Context, all []loop.Device, handle string) ([]loop.Device, error) {
	info, err := withImage(ctx, v.images, handle, (*os.File).Stat)
	gone := errors.Is(err, fs.ErrNotExist)
	if err != nil && !gone {
		return nil, err
	}
	var found []loop.Device
	for _, d := range all {
		if (gone && v.hadImage(d, handle)) || (!gone && d.Has(info)) {
			found = append(found, d)
		} else if d.Silent && d.BackingPath == v.images.shownPath(handle) {
			return nil, fmt.Errorf("%s does not answer and may have the image of volume %q: %w", d.Path, handle, loop.ErrInUse)
		}
	}
	return found, nil
}

// hadImage reports whether a device has a deleted image of this plugin, by the two remaining marks.
func (v *devices) hadImage(d loop.Device, handle string) bool {
	return d.Deleted && d.MayBeLabelled(label(handle)) && d.BackingPath == v.images.shownPath(handle)
}

// withinLimit calls attach, unless the node has its maximum of volumes and this is not one of them. Of several
// concurrent calls, those that count beyond the limit are refused; one may be refused because of another that then
// fails.
func (v *devices) withinLimit(ctx context.Context, file *os.File, attach func() (loop.Device, error)) (loop.Device, error) {
	if v.limit <= 0 {
		return attach()
	}
	under := v.attaching.Add(1)
	defer v.attaching.Add(-1)
	_, err := v.loops.FindFile(ctx, file)
	if !errors.Is(err, loop.ErrNotAttached) {
		return attach() // which finds it, or says what is wrong
	}
	all, err := v.loops.Devices(ctx)
	if err != nil {
		return loop.Device{}, err
	}
	has := int64(0)
	for _, d := range all {
		if v.isOurs(d) {
			has++
		}
	}
	if has+under > v.limit {
		return loop.Device{}, fmt.Errorf("%d volumes are attached to node %q, and %d others are being attached, of at most %d: detach one: %w",
			has, v.nodeName, under-1, v.limit, volume.ErrAttachLimit)
	}
	return attach()
}

// isOurs reports whether a device has an image of this node's: of its directory.
func (v *devices) isOurs(d loop.Device) bool {
	return strings.HasPrefix(d.Label, Name+"/") && filepath.Dir(d.BackingPath) == filepath.Dir(v.images.shownPath("any"))
}

// at returns an error unless the device at path has the image of handle.
func (v *devices) at(ctx context.Context, handle, path string) (loop.Device, error) {
	device, err := v.loops.Inspect(ctx, path)
	if err != nil {
		return loop.Device{}, err
	}
	info, err := withImage(ctx, v.images, handle, (*os.File).Stat)
	if err == nil && !device.Has(info) {
		err = fmt.Errorf("%s has %q and not the image of volume %q: %w", path, device.BackingPath, handle, mount.ErrForeign)
	}
	return device, err
}

// has reports whether a device has the image of a volume, or, if handle is empty, of any volume. The label that Attach
// gives to a device identifies the image. The label stays when the image is deleted, or the images move to another
// directory. If another program has attached the image, the file identifies it.
func (v *devices) has(ctx context.Context, d loop.Device, handle string) (bool, error) {
	mark := label(handle)
	if d.IsLabelled(mark) || handle == "" && strings.HasPrefix(d.Label, mark) {
		return true, nil
	}
	handle = cmp.Or(handle, strings.TrimSuffix(filepath.Base(d.BackingPath), imageSuffix))
	info, err := withImage(ctx, v.images, handle, (*os.File).Stat)
	if errors.Is(err, fs.ErrNotExist) {
		return d.BackingPath == v.images.shownPath(handle), nil
	}
	return err == nil && d.Has(info), err
}
