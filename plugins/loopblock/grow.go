package loopblock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// leastSpace is the space for an ext4's journal, whose part of a sparse image may still be a hole. Beside it, an expansion
// writes into a part of what it adds.
const leastSpace = 4 << 20

// checkSpaceBelow refuses to let the kernel expand an ext4 if the filesystem of the images is nearly full. The kernel would
// find out too late that it cannot write. The filesystem would then become read-only, or be damaged, for the pods that use
// it.
func (f *filesystems) checkSpaceBelow(ctx context.Context, handle, device string) error {
	found, err := format.Probe(ctx, device)
	if err != nil || found.Type != "ext4" {
		return err
	}
	room, err := format.Measure(ctx, device)
	if err != nil || !room.IsWorthGrowing() {
		return err
	}
	space, err := withImage(ctx, f.devices.images, handle, image.SpaceOf)
	if err != nil {
		return err
	}
	if least := min(space.Holes, leastSpace+(room.Device-room.Filesystem)/1024); space.Free < least {
		return fmt.Errorf("the filesystem of the images has %d bytes left, and a growth may take %d: make room, and stage the volume again: %w: %w",
			space.Free, least, volume.ErrInUse, syscall.ENOSPC)
	}
	return nil
}

// growUnused expands an unmounted filesystem to the size of its device, if that is much larger and the filesystem can be
// expanded without a mount. Such an expansion remains to be done if it was impossible while the volume was in use. If the
// filesystem cannot be expanded now, the volume is used with its old size, its PersistentVolume gets an event, and the next
// staging tries again.
func (f *filesystems) growUnused(ctx context.Context, src source, device loop.Device, fsType string) error {
	if fsType != "ext4" {
		return nil
	}
	room, err := format.Measure(ctx, device.Path)
	if err != nil || !room.IsWorthGrowing() {
		return err
	}
	grown, err := f.growTwice(ctx, src, device)
	switch {
	case errors.Is(err, format.ErrNoTool), errors.Is(err, mount.ErrUnsupported), errors.Is(err, format.ErrNotGrown):
		f.logger.Warn("the filesystem is mounted smaller than its device", "device", device.Path, "fstype", fsType, "error", err)
		f.reportNotGrown(src, device, err)
	case err != nil:
		return err
	}
	f.logExpansion(device.Path, grown, err)
	return nil
}

// growTwice expands a filesystem, and tries once more if that failed and left the filesystem intact. The next chance is the
// next staging, which may be far off, and a single failed write does not prove a full disk.
func (f *filesystems) growTwice(ctx context.Context, src source, device loop.Device) (format.GrowResult, error) {
	grown, err := format.GrowRecoverable(ctx, device.Path, recoveryStore{filesystems: f, handle: src.handle})
	if !errors.Is(err, format.ErrNotGrown) {
		return grown, err
	}
	f.logger.Warn("the filesystem has not grown, and is tried once more", "device", device.Path, "error", err)
	return format.GrowRecoverable(ctx, device.Path, recoveryStore{filesystems: f, handle: src.handle})
}

// growStaged expands a filesystem that can only be expanded while it is mounted, such as that of a copy that is larger than
// its source. The volume is usable without it, so a failure is only logged.
func (f *filesystems) growStaged(ctx context.Context, device, fsType, target string) {
	if fsType == "ext4" {
		return // it was expanded before the mount
	}
	room, err := format.Measure(ctx, device)
	if err == nil && !room.IsWorthGrowing() {
		return
	}
	var grown format.GrowResult
	if err == nil {
		grown, err = format.Grow(ctx, device, format.GrowOptions{MountPath: target})
	}
	if err != nil {
		f.logger.Warn("the filesystem stays smaller than its device", "device", device, "fstype", fsType, "error", err)
	}
	f.logExpansion(device, grown, err)
}

func (f *filesystems) logExpansion(device string, grown format.GrowResult, err error) {
	if err == nil && grown.Grown() {
		f.logger.Info("the filesystem has grown", "device", device, "before", grown.Before, "after", grown.After)
	}
}

// recoveryStore stores data with the image of a volume. After a check or an expansion was killed, the filesystem needs that data.
type recoveryStore struct {
	filesystems *filesystems
	handle      string
}

const attributePrefix = "user.volumekit."

// Save implements format.RecoveryStore. A check continues even if there is no space for the data, so Save logs that failure.
func (k recoveryStore) Save(ctx context.Context, name string, data []byte) error {
	_, err := withImage(ctx, k.filesystems.devices.images, k.handle, func(file *os.File) (struct{}, error) {
		return struct{}{}, attributeStore{file}.Save(ctx, name, data)
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		k.filesystems.logger.Warn("there is no room for what a check or growth needs that is killed: make room below the images",
			"volume", k.handle, "what", name, "error", err)
	}
	return err
}

// Load implements format.RecoveryStore.
func (k recoveryStore) Load(ctx context.Context, name string) ([]byte, error) {
	return withImage(ctx, k.filesystems.devices.images, k.handle, func(file *os.File) ([]byte, error) {
		return attributeStore{file}.Load(ctx, name)
	})
}

// attributeStore stores data in extended attributes of an open image.
type attributeStore struct{ file *os.File }

// Save implements format.RecoveryStore.
func (k attributeStore) Save(_ context.Context, name string, data []byte) error {
	return format.SetAttribute(k.file, attributePrefix+name, data)
}

// Load implements format.RecoveryStore.
func (k attributeStore) Load(_ context.Context, name string) ([]byte, error) {
	return format.Attribute(k.file, attributePrefix+name)
}

// whileWhole calls do, and proves that no check or expansion of the filesystem in an image that is not staged was under way, or
// had been killed, before and after. A copy of that time has not what the next staging needs to make the filesystem whole.
func whileWhole(ctx context.Context, file *os.File, do func() error) error {
	if err := checkNothingSaved(ctx, file); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return checkNothingSaved(ctx, file)
}

func checkNothingSaved(ctx context.Context, file *os.File) error {
	name, err := format.Interrupted(ctx, attributeStore{file})
	if err == nil && name != "" {
		err = fmt.Errorf("a check or growth of the filesystem in %q has not ended (%s): stage the volume once: %w",
			file.Name(), attributePrefix+name, volume.ErrTransient)
	}
	return err
}
