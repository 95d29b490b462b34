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

// The suffixes of an image and of an incomplete one. No handle gives an image the name of another's incomplete image, or
// the reverse.
const (
	imageSuffix   = ".img"
	partialSuffix = ".partial"
)

// images are the images of volumes, in one directory.
type images struct{ dir string }

// withImage calls do with the open image of a volume. It returns when ctx ends, even if the filesystem of the images hangs.
// The error for a missing image matches fs.ErrNotExist.
func withImage[T any](ctx context.Context, i images, handle string, do func(*os.File) (T, error)) (T, error) {
	value, err := image.With(ctx, i.dir, handle+imageSuffix, do)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("volume %q has no image at %q: %w", handle, i.path(handle), err)
	}
	return value, err
}

// path returns the path of a volume's image, for messages.
func (i images) path(handle string) string { return filepath.Join(i.dir, handle+imageSuffix) }

// shownPath returns the path of a volume's image as the kernel shows it.
func (i images) shownPath(handle string) string {
	dir, err := filepath.EvalSymlinks(i.dir)
	if err != nil {
		dir = i.dir
	}
	return filepath.Join(dir, handle+imageSuffix)
}

// request describes the image to be made.
type request struct {
	handle      string
	size        int64
	fsType      string
	preallocate bool
	origin      origin
	// For a restored volume, asked is the size that the claim requests, and chosen the filesystem that its class names, or empty.
	asked  int64
	chosen string
}

// fill writes the content of an incomplete image.
type fill func(ctx context.Context, file *os.File, r request) error

// ensure makes the image of a request unless it exists, and returns the size of the image in bytes.
func ensure(ctx context.Context, dir *image.Dir, r request, write fill) (int64, error) {
	size, err := existing(ctx, dir, r)
	if !errors.Is(err, fs.ErrNotExist) {
		return size, err
	}
	// The mkfs tool must exist before space is allocated.
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
	// Another process may have finished the image after the first look. Under the lock no other process can.
	size, err = existing(ctx, dir, r)
	if errors.Is(err, fs.ErrNotExist) {
		size, err = makeImage(ctx, dir, partial, r, write)
	}
	// This does nothing after the rename. If the removal fails, the next try makes the file anew.
	if left := dir.Remove(r.handle+partialSuffix, partial); left != nil {
		err = errors.Join(err, volume.Uncertain(left))
	}
	return size, err
}

// existing returns the size of an existing image that fits the request. If it does not fit, the error is uncertain: an earlier
// attempt with another request may have made it, and its caller must not forget it.
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
		return 0, volume.Uncertain(fmt.Errorf("image %q is there with %d bytes, and %d are asked for: use another name",
			file.Name(), info.Size(), r.size))
	}
	other, err := otherContent(ctx, file, r.fsType)
	if err != nil {
		return 0, err
	}
	if other != "" {
		return 0, volume.Uncertain(fmt.Errorf("image %q is there and holds %s instead of %s: use another name", file.Name(), other, r.fsType))
	}
	return info.Size(), dir.Sync() // an earlier process may have been killed before the sync
}

// checkContent returns an error that matches volume.ErrInfeasible for a new image that holds another filesystem.
func checkContent(ctx context.Context, file *os.File, fsType string) error {
	other, err := otherContent(ctx, file, fsType)
	if err == nil && other != "" {
		err = fmt.Errorf("image %q holds %s instead of %s: %w", file.Name(), other, fsType, volume.ErrInfeasible)
	}
	return err
}

// otherContent describes the content of an image if it is not the filesystem, and else returns "". It does not check a raw block
// volume, whose content is the pods' own.
func otherContent(ctx context.Context, file *os.File, fsType string) (string, error) {
	if fsType == noFilesystem {
		return "", nil
	}
	found, err := format.ProbeFile(ctx, file)
	if err != nil || found.Type == fsType {
		return "", err
	}
	return found.String(), nil
}

// makeImage makes the image out of the incomplete one, and returns its size.
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
	// The image exists, but it may not survive a power cut. The next try finds it and syncs again.
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

// resize sets the size of an incomplete image, and allocates the space if the request says so.
func (r request) resize(file *os.File, size int64) error {
	err := file.Truncate(size)
	if err == nil && r.preallocate {
		err = image.Allocate(file, size)
	}
	return sized(file, size, err)
}

// sized explains why a file could not get a size. If no file here can have that size, the error matches
// volume.ErrInfeasible and is not retried.
func sized(file *os.File, size int64, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.EFBIG) || errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("no file here can have as much, or all of it taken in one step: %w: %w", volume.ErrInfeasible, err)
	}
	return fmt.Errorf("image %q of %d bytes: %w", file.Name(), size, err)
}

// enlarge makes an image at least size bytes long, in a way that survives a power cut, and returns its size.
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
		err = writable.Sync() // also if a killed process extended it without a sync
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
