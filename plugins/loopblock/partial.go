package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/volume"
)

// request is what image is to be made.
type request struct {
	handle      string
	size        int64
	fsType      string
	preallocate bool
	origin      origin
}

// fill writes what an image that is being made holds.
type fill func(ctx context.Context, file *os.File, r request) error

// ensure makes the image of a request unless it is there, and returns the size of what is there in bytes.
func (i *images) ensure(ctx context.Context, r request, write fill) (int64, error) {
	size, err := i.existing(ctx, r)
	if !errors.Is(err, fs.ErrNotExist) {
		return size, err
	}
	// Looked for before space is taken, and again when it is run.
	if r.fsType != noFilesystem && r.origin.isNone() {
		if err := format.CanMake(r.fsType); err != nil {
			return 0, err
		}
	}
	partial, err := i.newPartial(r.handle)
	if err != nil {
		return 0, err
	}
	defer partial.Close() // and with it the lock
	// Somebody may have finished the image after the first look. From here on nobody else can.
	size, err = i.existing(ctx, r)
	if errors.Is(err, fs.ErrNotExist) {
		size, err = i.makeImage(ctx, partial, r, write)
	}
	return size, errors.Join(err, i.dropPartial(r.handle, partial))
}

// dropPartial removes the partial image unless it was renamed. What cannot be removed is made anew by the next try.
func (i *images) dropPartial(handle string, partial *os.File) error {
	if err := i.remove(handle+partialSuffix, partial); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

// existing returns the size of an image that is there and fits the request.
func (i *images) existing(ctx context.Context, r request) (int64, error) {
	file, err := i.openImage(r.handle)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() < r.size {
		return 0, fmt.Errorf("image %q is there with %d bytes, and %d are asked for: %w",
			file.Name(), info.Size(), r.size, volume.ErrInfeasible)
	}
	if err := checkContent(ctx, file, r.fsType); err != nil {
		return 0, err
	}
	return info.Size(), i.sync() // whoever made it may have been killed before
}

// checkContent makes sure that an image that is there holds the filesystem that is asked for. One that is mapped holds what
// its pods have written.
func checkContent(ctx context.Context, file *os.File, fsType string) error {
	if fsType == noFilesystem {
		return nil
	}
	found, err := format.ProbeFile(ctx, file)
	if err == nil && found.Type != fsType {
		err = fmt.Errorf("image %q is there and holds %s instead of %s: %w", file.Name(), found, fsType, volume.ErrInfeasible)
	}
	return err
}

// makeImage turns the partial image into the image, and returns its size.
func (i *images) makeImage(ctx context.Context, partial *os.File, r request, write fill) (int64, error) {
	if err := write(ctx, partial, r); err != nil {
		return 0, err
	}
	info, err := partial.Stat()
	if err == nil {
		err = partial.Sync()
	}
	if err != nil {
		return 0, fmt.Errorf("image %q: %w", partial.Name(), err)
	}
	if err := i.publish(r.handle); err != nil {
		return 0, err
	}
	// The image is there, and whether it survives a power cut is not known: the next try finds it and looks again.
	return info.Size(), volume.Uncertain(i.sync())
}

// formatNew gives an empty file its size, its space and its filesystem.
func formatNew(ctx context.Context, file *os.File, r request) error {
	if err := file.Truncate(r.size); err != nil {
		return errSize(file, r.size, err)
	}
	if r.preallocate {
		if err := allocate(file, r.size); err != nil {
			return fmt.Errorf("allocating %d bytes for image %q: %w", r.size, file.Name(), err)
		}
	}
	if r.fsType == noFilesystem {
		return nil
	}
	return format.MakeFile(ctx, file, format.MakeOptions{FSType: r.fsType})
}

// errSize says that a file cannot have a size. One that no file here can have is not tried again.
func errSize(file *os.File, size int64, err error) error {
	if errors.Is(err, syscall.EFBIG) {
		err = fmt.Errorf("no file here can have as much: %w: %w", volume.ErrInfeasible, err)
	}
	return fmt.Errorf("image %q of %d bytes: %w", file.Name(), size, err)
}

// maxPartial bounds how often a partial image may come and go under our eyes.
const maxPartial = 8

// newPartial makes and locks the partial image of a handle. The lock lives as long as the file is open, here or in a
// mkfs that outlives us, so that one that is not locked was left over by a process that is gone: it is removed.
func (i *images) newPartial(handle string) (*os.File, error) {
	name := handle + partialSuffix
	for range maxPartial {
		file, err := i.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err == nil {
			return i.lockPartial(name, file)
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("image in %q: %w", i.dir, err)
		}
		if err := i.removeLeftOver(handle); err != nil {
			return nil, err
		}
	}
	return nil, i.errBusy(name, nil)
}

// lockPartial locks a new partial image, unless somebody took it for a left-over first.
func (i *images) lockPartial(name string, file *os.File) (*os.File, error) {
	err := tryLock(file)
	if err == nil {
		var same bool
		if same, err = i.is(name, file); err == nil && same {
			return file, nil
		}
	}
	file.Close()
	return nil, i.errBusy(name, err)
}

func (i *images) errBusy(name string, err error) error {
	busy := fmt.Errorf("%q is being made by somebody else: %w", i.path(name), volume.ErrTransient)
	return errors.Join(busy, err)
}

// removeLeftOver removes the partial image of a process that is gone. None is no error; one that is being made is an error
// that matches volume.ErrTransient.
func (i *images) removeLeftOver(handle string) error {
	name := handle + partialSuffix
	file, err := i.openRegular(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := tryLock(file); err != nil {
		return i.errBusy(name, err)
	}
	return i.remove(name, file)
}
