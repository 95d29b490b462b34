package loopblock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// The parameters of a VolumeAttributesClass with the driverName [Driver].
const (
	// ParameterDirectIO says whether the loop device bypasses the page cache of the images' filesystem: "true" or "false".
	// Without it [Options].DirectIO decides, where the filesystem can do it.
	ParameterDirectIO = "directIO"
	// ParameterReadAhead is how many bytes the kernel reads ahead: a quantity such as "1Mi", a multiple of 4Ki, at most 64Mi.
	ParameterReadAhead = "readAhead"
)

// attributesSuffix ends the name of the file with the attributes of a volume, beside its image.
const attributesSuffix = ".attributes"

// longestSuffix is the longest that a file of a volume has after its handle.
const longestSuffix = attributesSuffix + image.NextSuffix

const (
	yes           = "true"
	readAheadUnit = 4 << 10
	mostReadAhead = 64 << 20
	// mostAttributes is how large the file can be, in bytes.
	mostAttributes = 4 << 10
)

// attributes are parameters that were checked, by their keys.
type attributes map[string]string

// attributesOf checks parameters: one that is not known, or has a value that it cannot have, is an error.
func attributesOf(parameters map[string]string) (attributes, error) {
	for key, value := range parameters {
		if err := checkAttribute(key, value); err != nil {
			return nil, err
		}
	}
	return maps.Clone(parameters), nil
}

func checkAttribute(key, value string) error {
	switch key {
	case ParameterDirectIO:
		if value != yes && value != "false" {
			return fmt.Errorf("parameter %s is %q: use true or false", key, value)
		}
		return nil
	case ParameterReadAhead:
		if bytes, err := readAheadOf(value); err != nil || bytes < 0 || bytes > mostReadAhead || bytes%readAheadUnit != 0 {
			return fmt.Errorf("parameter %s is %q: use a multiple of 4Ki from 0 to 64Mi", key, value)
		}
		return nil
	}
	return fmt.Errorf("parameter %q of the attributes class is not known: use %s and %s",
		key, ParameterDirectIO, ParameterReadAhead)
}

func readAheadOf(value string) (int64, error) {
	quantity, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, err
	}
	return quantity.Value(), nil
}

// tuning returns what the attributes make of a loop device. What they do not name stays as it is.
func (a attributes) tuning() loop.Tuning {
	var t loop.Tuning
	if value, ok := a[ParameterDirectIO]; ok {
		yes := value == yes
		t.DirectIO = &yes
	}
	if value, ok := a[ParameterReadAhead]; ok {
		bytes, _ := readAheadOf(value) // It was checked.
		t.ReadAhead = &bytes
	}
	return t
}

// asFound is the tuning of a device that has no attributes any more: the next image that it gets must not inherit them. Direct
// I/O ends with the attachment.
func (a attributes) asFound() loop.Tuning {
	var t loop.Tuning
	readAhead := int64(loop.DefaultReadAhead)
	if _, ok := a[ParameterReadAhead]; ok {
		t.ReadAhead = &readAhead
	}
	return t
}

// attributes reads the attributes of a volume; none where it has no file.
func (i images) attributes(ctx context.Context, handle string) (attributes, error) {
	text, err := image.With(ctx, i.dir, handle+attributesSuffix, func(file *os.File) ([]byte, error) {
		return io.ReadAll(io.LimitReader(file, mostAttributes))
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var stored map[string]string
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	if err == nil {
		_, err = attributesOf(stored)
	}
	if err != nil {
		return nil, fmt.Errorf("attributes of volume %q in %q: %w", handle, filepath.Join(i.dir, handle+attributesSuffix), err)
	}
	return stored, nil
}

// setAttributes writes the attributes of a volume, in a way that survives a power cut.
func (i images) setAttributes(handle string, a attributes) error {
	dir, err := image.OpenDir(i.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if len(a) == 0 {
		return removeAttributes(dir, handle)
	}
	text, err := json.Marshal(map[string]string(a))
	if err != nil {
		return err
	}
	return dir.Replace(handle+attributesSuffix, text)
}

// removeAttributes removes the file with the attributes of a volume, if there is one, and what a killed process has left of the
// next one.
func removeAttributes(dir *image.Dir, handle string) error {
	if err := removeFile(dir, handle+attributesSuffix); err != nil {
		return err
	}
	return removeFile(dir, handle+attributesSuffix+image.NextSuffix)
}

// removeFile removes a file, if there is one.
func removeFile(dir *image.Dir, name string) error {
	file, err := dir.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return dir.Remove(name, file)
}

// ModifyVolume implements volume.ModifiableVolumePlugin. The attributes are written to a file beside the image, and the loop
// device gets them at once, also while pods use it, or else when the image is attached. A parameter that is not known, a value
// that it cannot have, and direct I/O that the images' filesystem cannot do are errors that match volume.ErrInfeasible; nothing
// is changed then. A call that was broken off has written the file or not, and the next one goes on.
func (p *Plugin) ModifyVolume(ctx context.Context, spec *volume.Spec, parameters map[string]string) error {
	src, err := sourceOf(spec)
	if err != nil {
		return err
	}
	if err := p.devices.modify(ctx, src.handle, parameters); err != nil {
		return fmt.Errorf("modifying volume %q: %w", src.handle, classify(err))
	}
	return nil
}

func (v *devices) modify(ctx context.Context, handle string, parameters map[string]string) error {
	done, err := v.attributeLocks.lock(ctx, handle)
	if err != nil {
		return err
	}
	defer done()
	wanted, err := attributesOf(parameters)
	if err != nil {
		return fmt.Errorf("%w: %w", err, volume.ErrInfeasible)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("it was not begun: %w", context.Cause(ctx))
	}
	before, err := v.images.attributes(ctx, handle)
	if err != nil {
		return err
	}
	all := attributes{}
	maps.Copy(all, before)
	maps.Copy(all, wanted)
	_, err = withImage(ctx, v.images, handle, func(file *os.File) (struct{}, error) {
		if err := wanted.checkFile(file); err != nil {
			return struct{}{}, err
		}
		if err := v.images.setAttributes(handle, all); err != nil {
			return struct{}{}, volume.Uncertain(err)
		}
		_, err := v.loops.TuneFile(ctx, file, wanted.tuning())
		switch {
		case errors.Is(err, loop.ErrNotAttached):
			return struct{}{}, nil // The image gets a device that has them.
		case errors.Is(err, mount.ErrUnsupported):
			return struct{}{}, v.restoreTuning(handle, before, err)
		}
		return struct{}{}, volume.Uncertain(err)
	})
	return err
}

// restoreTuning writes the former attributes of a volume again, since its device cannot have the new ones and was not changed.
func (v *devices) restoreTuning(handle string, before attributes, cause error) error {
	if err := v.images.setAttributes(handle, before); err != nil {
		return volume.Uncertain(errors.Join(cause, err))
	}
	return fmt.Errorf("the device cannot do direct I/O: set %s to false: %w: %w", ParameterDirectIO, cause, volume.ErrInfeasible)
}

// checkFile refuses direct I/O where the filesystem of the image cannot do it.
func (a attributes) checkFile(file *os.File) error {
	if a[ParameterDirectIO] != yes {
		return nil
	}
	return errNoDirectIO(file.Name(), canDirectIO(file))
}

// errNoDirectIO is the error for an image that could not be opened for direct I/O. It matches volume.ErrInfeasible only if the
// filesystem cannot do it.
func errNoDirectIO(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EINVAL), errors.Is(err, errors.ErrUnsupported), errors.Is(err, volume.ErrUnsupported):
		return fmt.Errorf("the filesystem of image %q cannot do direct I/O: set %s to false: %w: %w", name, ParameterDirectIO, err, volume.ErrInfeasible)
	}
	return fmt.Errorf("image %q could not be opened for direct I/O: %w", name, err)
}

// detach detaches an image. Its attributes are taken from the device first, which another image may get next; a device that
// is kept gets them again.
func (v *devices) detach(ctx context.Context, handle string, device loop.Device) error {
	done, err := v.attributeLocks.lock(ctx, handle)
	if err != nil {
		return err
	}
	defer done()
	has, err := v.images.attributes(ctx, handle)
	if err != nil || len(has) == 0 {
		return v.loops.Detach(ctx, device) // What cannot be read was given to no device.
	}
	err = v.tune(ctx, handle, has.asFound())
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = v.loops.Detach(ctx, device)
	}
	if err != nil && !errors.Is(err, loop.ErrNotAttached) {
		return errors.Join(err, v.tune(ctx, handle, has.tuning()))
	}
	return nil
}

// tune changes the device of an image. An image that has none, or none any more, needs nothing.
func (v *devices) tune(ctx context.Context, handle string, tuning loop.Tuning) error {
	_, err := withImage(ctx, v.images, handle, func(file *os.File) (loop.Device, error) {
		return v.tuneWhereItCan(ctx, file, handle, tuning)
	})
	if errors.Is(err, loop.ErrNotAttached) {
		return nil
	}
	return err
}

// tuneWhereItCan changes the device of an open image. A device that cannot do direct I/O, such as one whose image has moved to a
// disk with larger sectors, gets the rest, with a warning: the volume can be used all the same.
func (v *devices) tuneWhereItCan(ctx context.Context, file *os.File, handle string, tuning loop.Tuning) (loop.Device, error) {
	device, err := v.loops.TuneFile(ctx, file, tuning)
	if tuning.DirectIO == nil || !errors.Is(err, mount.ErrUnsupported) {
		return device, err
	}
	v.logger.Warn("the device stays without the direct I/O that the attributes of its volume ask for", "volume", handle, "error", err)
	tuning.DirectIO = nil
	return v.loops.TuneFile(ctx, file, tuning)
}
