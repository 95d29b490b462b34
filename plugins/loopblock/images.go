package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// The names of an image and of one that is being made. No handle makes one name of the other's kind.
const (
	imageSuffix   = ".img"
	partialSuffix = ".partial"
)

// images is the directory of the images, open for the length of one call. Every name is resolved beneath its descriptor.
type images struct {
	root  *os.Root
	dir   string
	loops *loop.Manager
}

// openImages opens the directory. One that is not there is an error that matches fs.ErrNotExist.
func (p *Plugin) openImages() (*images, error) {
	root, err := os.OpenRoot(p.baseDir)
	if err != nil {
		return nil, fmt.Errorf("directory of images: %w", err)
	}
	return &images{root: root, dir: p.baseDir, loops: p.loops}, nil
}

// makeImages makes the directory where it is missing, so that it survives a power cut, and opens it.
func (p *Plugin) makeImages() (*images, error) {
	if err := makeSynced(p.baseDir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of images: %w", err)
	}
	return p.openImages()
}

// makeSynced makes a directory, and those above it that are missing. One that is there may have been made by somebody who
// was killed before he had synced it.
func makeSynced(dir string, perm fs.FileMode) error {
	err := os.Mkdir(dir, perm)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeSynced(filepath.Dir(dir), 0o750); err != nil {
			return err
		}
		err = os.Mkdir(dir, perm)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func (i *images) close() { _ = i.root.Close() }

func (i *images) path(name string) string { return filepath.Join(i.dir, name) }

// openRegular opens a regular file of the directory itself, not one that a link leads to. Flags are those of os.OpenFile.
func (i *images) openRegular(name string, flags int) (*os.File, error) {
	before, err := i.root.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("image in %q: %w", i.dir, err)
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a regular file but %s: %w", i.path(name), before.Mode().Type(), volume.ErrInvalid)
	}
	file, err := i.root.OpenFile(name, flags, 0)
	if err != nil {
		return nil, fmt.Errorf("image in %q: %w", i.dir, err)
	}
	after, err := file.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = fmt.Errorf("%q was replaced while it was opened: %w", i.path(name), volume.ErrTransient)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// openImage opens an image for reading, which is all that attaching needs.
func (i *images) openImage(handle string) (*os.File, error) {
	return i.openRegular(handle+imageSuffix, os.O_RDONLY)
}

// is reports whether name still is that very file.
func (i *images) is(name string, file *os.File) (bool, error) {
	there, err := i.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := file.Stat()
	return err == nil && os.SameFile(there, info), err
}

// remove removes name if it still is that very file.
func (i *images) remove(name string, file *os.File) error {
	same, err := i.is(name, file)
	if err != nil || !same {
		return err
	}
	if err := i.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("image in %q: %w", i.dir, err)
	}
	return i.sync()
}

// sync makes what was made, renamed or removed in the directory survive a power cut.
func (i *images) sync() error {
	dir, err := i.root.Open(".")
	if err != nil {
		return fmt.Errorf("directory of images: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("directory of images %q: %w", i.dir, err)
	}
	return nil
}

// delete removes an image that is attached nowhere. One that is gone is no error.
func (i *images) delete(ctx context.Context, handle string) error {
	file, err := i.openImage(handle)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return i.loops.WhileDetached(ctx, file, func() error { return i.remove(handle+imageSuffix, file) })
}

// imagePath is the path of the image of a volume, for messages and for comparisons.
func (p *Plugin) imagePath(handle string) string { return filepath.Join(p.baseDir, handle+imageSuffix) }

// errNoImage says which image is missing.
func (p *Plugin) errNoImage(handle string, err error) error {
	return fmt.Errorf("volume %q has no image at %q: %w", handle, p.imagePath(handle), err)
}

// withImage calls do with the open image of a volume. It returns when ctx ends, also while the filesystem of the images
// hangs: the error is then a *mount.LostError. A missing image is an error that matches fs.ErrNotExist.
func withImage[T any](ctx context.Context, p *Plugin, handle string, do func(*os.File) (T, error)) (T, error) {
	path := p.imagePath(handle)
	if ctx.Err() != nil {
		return *new(T), fmt.Errorf("image %q was not opened: %w: %w", path, volume.ErrTransient, context.Cause(ctx))
	}
	var value T
	ended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		var err error
		value, err = useImage(p, handle, do)
		ended <- err
		awaitLost(err)
	}()
	select {
	case err := <-ended:
		return value, err
	case <-ctx.Done():
		return *new(T), mount.NewLostError("use of the image", path, context.Cause(ctx), done)
	}
}

// useImage is withImage without a bound.
func useImage[T any](p *Plugin, handle string, do func(*os.File) (T, error)) (T, error) {
	i, err := p.openImages()
	if errors.Is(err, fs.ErrNotExist) {
		return *new(T), p.errNoImage(handle, err)
	}
	if err != nil {
		return *new(T), err
	}
	defer i.close()
	file, err := i.openImage(handle)
	if errors.Is(err, fs.ErrNotExist) {
		return *new(T), p.errNoImage(handle, err)
	}
	if err != nil {
		return *new(T), err
	}
	defer file.Close()
	return do(file)
}

// awaitLost waits for the call that err says was left behind.
func awaitLost(err error) {
	var lost *mount.LostError
	if errors.As(err, &lost) {
		<-lost.Done()
	}
}
