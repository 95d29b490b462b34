package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// The names of an image and of one that is being made. No handle makes one name of the other's kind.
const (
	imageSuffix   = ".img"
	partialSuffix = ".partial"
)

// images are the images of volumes, which lie in one directory.
type images struct{ dir string }

// withImage calls do with the open image of a volume, and returns when ctx ends, also while the filesystem of the images hangs. A
// missing image is an error that matches fs.ErrNotExist.
func withImage[T any](ctx context.Context, i images, handle string, do func(*os.File) (T, error)) (T, error) {
	value, err := image.With(ctx, i.dir, handle+imageSuffix, do)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("volume %q has no image at %q: %w", handle, i.path(handle), err)
	}
	return value, err
}

// path is the path of the image of a volume, for messages.
func (i images) path(handle string) string { return filepath.Join(i.dir, handle+imageSuffix) }

// shownPath is the path of an image as the kernel shows it.
func (i images) shownPath(handle string) string {
	dir, err := filepath.EvalSymlinks(i.dir)
	if err != nil {
		dir = i.dir
	}
	return filepath.Join(dir, handle+imageSuffix)
}

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
func ensure(ctx context.Context, dir *image.Dir, r request, write fill) (int64, error) {
	size, err := existing(ctx, dir, r)
	if !errors.Is(err, fs.ErrNotExist) {
		return size, err
	}
	// Looked for before space is taken, and again when it is run.
	if r.fsType != noFilesystem && r.origin.isNone() {
		if err := format.CanMake(r.fsType); err != nil {
			return 0, err
		}
	}
	partial, err := dir.Begin(r.handle + partialSuffix)
	if err != nil {
		return 0, err
	}
	defer partial.Close() // and with it the lock
	// Somebody may have finished the image after the first look. From here on nobody else can.
	size, err = existing(ctx, dir, r)
	if errors.Is(err, fs.ErrNotExist) {
		size, err = makeImage(ctx, dir, partial, r, write)
	}
	// Unless it was renamed. What cannot be removed is made anew by the next try.
	if left := dir.Remove(r.handle+partialSuffix, partial); left != nil {
		err = errors.Join(err, volume.Uncertain(left))
	}
	return size, err
}

// existing returns the size of an image that is there and fits the request.
func existing(ctx context.Context, dir *image.Dir, r request) (int64, error) {
	file, err := dir.Open(r.handle+imageSuffix, os.O_RDONLY)
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
	return info.Size(), dir.Sync() // whoever made it may have been killed before
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
func makeImage(ctx context.Context, dir *image.Dir, partial *os.File, r request, write fill) (int64, error) {
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
	if err := dir.Publish(r.handle+partialSuffix, r.handle+imageSuffix); err != nil {
		return 0, err
	}
	// The image is there, and whether it survives a power cut is not known: the next try finds it and looks again.
	return info.Size(), volume.Uncertain(dir.Sync())
}

// formatNew gives an empty file its size, its space and its filesystem.
func formatNew(ctx context.Context, file *os.File, r request) error {
	if err := r.resize(file, r.size); err != nil {
		return err
	}
	if r.fsType == noFilesystem {
		return nil
	}
	return format.MakeFile(ctx, file, format.MakeOptions{FSType: r.fsType})
}

// resize gives a partial image a size and, where it is asked for, takes the space.
func (r request) resize(file *os.File, size int64) error {
	err := file.Truncate(size)
	if err == nil && r.preallocate {
		err = image.Allocate(file, size)
	}
	return sized(file, size, err)
}

// sized explains why a file could not be given a size. What no file here can have is not tried again.
func sized(file *os.File, size int64, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.EFBIG) || errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("no file here can have as much, or all of it taken in one step: %w: %w", volume.ErrInfeasible, err)
	}
	return fmt.Errorf("image %q of %d bytes: %w", file.Name(), size, err)
}

// enlarge makes an image at least as large as size, so that it survives a power cut, and returns the size that it has.
func (i images) enlarge(handle string, file *os.File, size int64) (int64, error) {
	dir, err := image.OpenDir(i.dir)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	writable, err := dir.Open(handle+imageSuffix, os.O_RDWR)
	if err != nil {
		return 0, err
	}
	defer writable.Close()
	if same, err := dir.Is(handle+imageSuffix, file); err != nil || !same {
		return 0, errors.Join(err, fmt.Errorf("%q was replaced meanwhile: %w", file.Name(), volume.ErrTransient))
	}
	err = image.Extend(writable, size)
	if err == nil {
		err = writable.Sync() // also of one that was killed before
	}
	if err != nil {
		return 0, sized(file, size, err)
	}
	info, err := writable.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
