package loopblock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// EventFilesystemRepaired is the reason of the event about a PersistentVolume whose filesystem had errors that were repaired
// before it was mounted.
const EventFilesystemRepaired = "FilesystemRepaired"

// EventFilesystemErrors is the reason of the event about a PersistentVolume whose filesystem had errors on record, which the
// kernel had found while it was mounted, and in which a check has found nothing to repair.
const EventFilesystemErrors = "FilesystemErrors"

// EventFilesystemNotGrown is the reason of the event about a PersistentVolume whose filesystem is smaller than its image, since it
// could not be made larger before it was mounted.
const EventFilesystemNotGrown = "FilesystemNotGrown"

// filesystems checks, repairs and grows the filesystems in images. It never formats.
type filesystems struct {
	devices *devices
	logger  *slog.Logger
	events  volume.EventRecorder
}

// prepare returns the filesystem on a device after it was checked, and repaired where that is safe. It never formats.
func (f *filesystems) prepare(ctx context.Context, src source, device loop.Device) (string, error) {
	found, err := format.Probe(ctx, device.Path)
	if err != nil {
		return "", err
	}
	switch {
	case !slices.Contains(fsTypes(), found.Type):
		return "", fmt.Errorf("the image holds %s: an image is formatted only when it is provisioned: %w", found, ErrNoFilesystem)
	case src.fsType != "" && src.fsType != found.Type:
		return "", fmt.Errorf("the image holds %s and the volume's fsType is %s: %w", found, src.fsType, ErrNoFilesystem)
	case src.readOnly:
		return found.Type, nil
	}
	return found.Type, f.check(ctx, src, device, found.Type)
}

// check runs the filesystem's check on a device that is mounted in no mount namespace. Where the
// program is missing, the kernel replays the journal alone, as it does for Kubernetes.
func (f *filesystems) check(ctx context.Context, src source, device loop.Device, fsType string) error {
	mounted, err := f.devices.loops.AwaitReleased(ctx, device.Path)
	if err != nil || mounted {
		return err
	}
	result, err := format.CheckRecoverable(ctx, device.Path, fsType, recoveryStore{filesystems: f, handle: src.handle})
	if errors.Is(err, format.ErrNoTool) {
		f.logger.Warn("the filesystem is mounted without a check", "device", device.Path, "fstype", fsType, "error", err)
		return nil
	}
	if err == nil && result.Repaired {
		f.logger.Warn("the filesystem was repaired", "device", device.Path, "image", device.BackingPath)
		f.reportRepaired(src, device)
	}
	if err == nil && !result.Repaired && result.Errors > 0 {
		f.logger.Warn("the filesystem had errors on record", "device", device.Path, "image", device.BackingPath, "errors", result.Errors)
		f.reportErrors(src, device, result.Errors)
	}
	if err != nil {
		return err
	}
	return f.growUnused(ctx, src, device, fsType)
}

func (f *filesystems) reportErrors(src source, device loop.Device, count int) {
	if f.events != nil {
		f.events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemErrors,
			"the kernel had found %d errors in the filesystem in image %q while it was used; a check has found nothing to repair: what was written then may be missing",
			count, device.BackingPath)
	}
}

func (f *filesystems) reportRepaired(src source, device loop.Device) {
	if f.events != nil {
		f.events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemRepaired,
			"the filesystem in image %q had errors, which were repaired: what was written last may be missing", device.BackingPath)
	}
}

func (f *filesystems) reportNotGrown(src source, device loop.Device, cause error) {
	if f.events != nil {
		f.events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemNotGrown,
			"the filesystem in image %q is mounted smaller than the image, and is to grow when the volume is staged next: %v",
			device.BackingPath, cause)
	}
}
