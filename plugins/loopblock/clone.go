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

// CopyProgress is the progress of the copy of an image.
type CopyProgress struct {
	// Volume is the handle of the new volume, or the name of the snapshot. Source is the handle of the copied volume.
	Volume, Source string
	// Done is the copied part of the image, and Size the size of the image, in bytes; holes count, and take no time.
	Done, Size int64
}

// origin is the volume that a new one is a copy of; the zero value is none.
type origin struct {
	handle string
	// gone is true if the source does not exist any more: only a copy that was made before can be found.
	gone bool
	// snapshot is the handle of the snapshot from which the volume is restored; empty means none. record and member are what it
	// is, once that is known.
	snapshot string
	record   snapshotRecord
	member   int
}

func (o origin) isNone() bool { return o.handle == "" && o.snapshot == "" && !o.gone }

// name is the handle of the source.
func (o origin) name() string { return cmp.Or(o.handle, o.snapshot) }

// CanClone implements volume.CloneableVolumePlugin: every volume can be copied.
func (p *Plugin) CanClone(source *volume.Spec) (bool, error) {
	_, err := sourceOf(source)
	return err == nil, err
}

// of changes a request into one for a copy, if the claim has a data source.
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

// copies creates images that are copies of others.
type copies struct {
	mounts   *mounts
	progress func(CopyProgress) // may be nil
	logger   *slog.Logger
}

// copying is one running copy of an image.
type copying struct {
	copies
	request  request
	from, to *os.File
}

// clone fills the partial image with the content of the source's image, expands it to the requested size and gives its
// filesystem a new identity.
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

// renew gives the copied filesystem a new identity.
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

// quiet copies an image without writers.
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

// inUse copies an image that may be written meanwhile. That requires a filesystem that makes the copy in one step. The
// copy holds what a power cut at that moment would have left, which a journal can repair; it also holds all writes
// before the call, because those are flushed first. A freeze would add nothing, and would leave the pods' filesystem
// frozen if this process is killed.
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
	if flushed == stagedImage {
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

// flush writes all earlier writes to the image, and returns the users of the volume. A filesystem that is mounted
// elsewhere than at this plugin's staging path is foreign, and cannot be flushed.
func (c copying) flush(ctx context.Context, device loop.Device) (use, error) {
	staging := c.mounts.stagingPath(c.request.origin.handle)
	there, mounted, err := c.mounts.at(ctx, staging)
	if err != nil {
		return attachedImage, err
	}
	if mounted && device.IsMountedAs(there) {
		return stagedImage, image.SyncFilesystem(staging)
	}
	opened, err := c.mounts.devices.loops.DeviceOpened(ctx, device.Path)
	if err == nil && opened && c.request.fsType != noFilesystem {
		err = fmt.Errorf("%s is mounted, and not at %q, so that it cannot be flushed: unmount it: %w", device.Path, staging, volume.ErrInUse)
	}
	if err != nil {
		return attachedImage, err
	}
	return attachedImage, image.Sync(device.Path)
}

// enlarge expands the copy to the requested size. It never shrinks the copy.
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
