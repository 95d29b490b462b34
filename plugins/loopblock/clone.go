package loopblock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// CopyProgress is how far the copy of an image is.
type CopyProgress struct {
	// Volume is the handle of the volume that is made, or the name of the snapshot. Source is the handle of what is copied.
	Volume, Source string
	// Done is how much of the image is copied, and Size all of it, in bytes; holes count, and take no time.
	Done, Size int64
}

// origin is the volume that a new one is a copy of; the zero value is none.
type origin struct {
	handle string
	// gone is true when there is nothing to be copied any more, so that only a copy that was made before can be found.
	gone bool
	// snapshot is the handle of the snapshot from which the volume is restored; empty means none. record and member are what it
	// is, once that is known.
	snapshot string
	record   snapshotRecord
	member   int
}

func (o origin) isNone() bool { return o.handle == "" && o.snapshot == "" && !o.gone }

// name is the handle of what is copied.
func (o origin) name() string { return cmp.Or(o.handle, o.snapshot) }

// CanClone implements volume.CloneableVolumePlugin: every volume can be copied.
func (p *Plugin) CanClone(source *volume.Spec) (bool, error) {
	_, err := sourceOf(source)
	return err == nil, err
}

// of makes a request one for a copy, where the claim has a source of data.
func (r *request) of(options volume.VolumeOptions) error {
	if options.Snapshot != nil {
		return r.fromSnapshot(options)
	}
	if options.Source == nil {
		r.origin = origin{gone: namesClaim(options.PVC) || namesSnapshot(options.PVC)}
		return nil
	}
	src, err := sourceOf(volume.NewSpecFromPersistentVolume(options.Source, false))
	if err != nil {
		return err
	}
	chosen := options.Parameters[volume.VolumeParameterFSType]
	switch block := volume.CheckPersistentVolumeClaimModeBlock(options.PVC); {
	case block != src.block:
		return fmt.Errorf("volume %q has another volumeMode than the claim for its copy: %w", src.handle, volume.ErrInfeasible)
	case block:
	case chosen != "" && src.fsType != "" && chosen != src.fsType:
		return fmt.Errorf("volume %q has %s and the class parameter %s is %q: a copy has what its source has: %w",
			src.handle, src.fsType, volume.VolumeParameterFSType, chosen, volume.ErrInfeasible)
	case src.fsType != "":
		r.fsType = src.fsType
	}
	r.origin = origin{handle: src.handle}
	return nil
}

// namesClaim reports whether the data source of a claim is another claim.
func namesClaim(claim *v1.PersistentVolumeClaim) bool {
	if source := claim.Spec.DataSource; source != nil {
		return source.Kind == "PersistentVolumeClaim" && (source.APIGroup == nil || *source.APIGroup == "")
	}
	ref := claim.Spec.DataSourceRef
	return ref != nil && ref.Kind == "PersistentVolumeClaim" && (ref.APIGroup == nil || *ref.APIGroup == "")
}

// copies makes images that are copies of others.
type copies struct {
	mounts   *mounts
	progress func(CopyProgress) // may be nil
	logger   *slog.Logger
}

// copying is one copy of an image under way.
type copying struct {
	copies
	request  request
	from, to *os.File
}

// clone fills the partial image with what the source's image holds, makes it as large as is asked for and gives its filesystem
// an identity of its own.
func (k copies) clone(ctx context.Context, to *os.File, r request) error {
	if r.origin.gone {
		return fmt.Errorf("the volume that was to be copied is gone: %w", volume.ErrInfeasible)
	}
	_, err := withImage(ctx, k.mounts.devices.images, r.origin.handle, func(from *os.File) (struct{}, error) {
		c := copying{copies: k, request: r, from: from, to: to}
		return struct{}{}, c.run(ctx)
	})
	if err != nil {
		return fmt.Errorf("copying volume %q: %w", r.origin.handle, err)
	}
	return nil
}

func (c copying) run(ctx context.Context) error {
	err := c.mounts.devices.loops.WhileUnwritten(ctx, c.from, func() error {
		return c.whileWhole(ctx, func() error { return c.quiet(ctx) })
	})
	if errors.Is(err, loop.ErrInUse) {
		err = c.inUse(ctx)
	}
	if err != nil {
		return err
	}
	return c.renew(ctx)
}

// renew makes a volume of its own of what was copied.
func (c copying) renew(ctx context.Context) error {
	if err := checkContent(ctx, c.to, c.request.fsType); err != nil {
		return err
	}
	if c.request.fsType != noFilesystem {
		if err := format.RenewFile(ctx, c.to); err != nil {
			return err
		}
	}
	return c.enlarge()
}

// whileWhole is whileWhole for a filesystem that is not staged.
func (c copying) whileWhole(ctx context.Context, do func() error) error {
	if c.request.fsType == noFilesystem {
		return do()
	}
	return whileWhole(ctx, c.from, do)
}

// quiet copies an image to which nobody writes.
func (c copying) quiet(ctx context.Context) error {
	if !c.request.preallocate {
		err := image.Share(c.to, c.from)
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	logger := c.logger.With("volume", c.request.handle, "source", c.request.origin.name())
	logger.Info("the image is copied, since its filesystem cannot share its blocks or all space is to be taken")
	if err := c.copyAll(ctx); err != nil {
		return err
	}
	logger.Info("the image is copied whole")
	return nil
}

// inUse copies an image that may be written to meanwhile. That takes a filesystem below that makes the copy in one step: it
// holds what a power cut at that moment would have left, which is what a journal is for; and what was written before the call,
// since that is flushed first. Freezing would add nothing to that, and would leave the pods' filesystem frozen when this
// process is killed.
func (c copying) inUse(ctx context.Context) error {
	device, err := c.mounts.devices.loops.FindFile(ctx, c.from)
	if errors.Is(err, loop.ErrNotAttached) {
		return fmt.Errorf("volume %q has just been detached: %w", c.request.origin.handle, volume.ErrTransient)
	}
	if err != nil {
		return err
	}
	if c.request.preallocate || !image.SharesInOneStep(c.from) {
		return c.errInUse(device, nil)
	}
	flushed, err := c.flush(ctx, device)
	if err != nil {
		return err
	}
	share := func() error { return image.Share(c.to, c.from) }
	if flushed == staged {
		err = share()
	} else {
		err = c.whileWhole(ctx, share)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return c.errInUse(device, err)
	}
	return err
}

func (c copying) errInUse(device loop.Device, cause error) error {
	err := fmt.Errorf("volume %q is attached to %s for writing, and only a filesystem that shares blocks (xfs, btrfs), without %s, copies it meanwhile: end the pods that use it, or make it read-only: %w",
		c.request.origin.handle, device.Path, ParameterPreallocate, volume.ErrInUse)
	return errors.Join(err, cause)
}

// flush has what was written so far written to the image, and returns what the volume is used by. A filesystem that is not mounted
// where this plugin stages it is foreign, and cannot be flushed.
func (c copying) flush(ctx context.Context, device loop.Device) (use, error) {
	staging := c.mounts.stagingPath(c.request.origin.handle)
	there, mounted, err := c.mounts.at(ctx, staging)
	if err != nil {
		return loose, err
	}
	if mounted && device.IsMountedAs(there) {
		return staged, image.SyncFilesystem(staging)
	}
	opened, err := c.mounts.devices.loops.DeviceOpened(ctx, device.Path)
	if err == nil && opened && c.request.fsType != noFilesystem {
		err = fmt.Errorf("%s is mounted, and not at %q, so that it cannot be flushed: unmount it: %w", device.Path, staging, volume.ErrInUse)
	}
	if err != nil {
		return loose, err
	}
	return loose, image.Sync(device.Path)
}

// enlarge makes the copy as large as is asked for, but never smaller than it is.
func (c copying) enlarge() error {
	info, err := c.to.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if c.request.size > size {
		size = max(c.request.size, format.SizesOf(c.request.fsType).LeastGrown)
	}
	return c.request.resize(c.to, size)
}

// copyAll copies the data of an image and leaves its holes out.
func (c copying) copyAll(ctx context.Context) error {
	info, err := c.from.Stat()
	if err != nil {
		return err
	}
	if err := c.request.resize(c.to, info.Size()); err != nil {
		return err
	}
	return image.CopyData(ctx, c.to, c.from, func(done, size int64) {
		if c.progress != nil {
			c.progress(CopyProgress{
				Volume: c.request.handle, Source: c.request.origin.name(), Done: done, Size: size,
			})
		}
	})
}
