package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

// With opens an image for reading, which is enough to attach it, calls do, and closes the image. It returns when ctx ends,
// even if the filesystem of the images hangs. The error is then an *mount.AbandonedError. The error for a missing image or
// directory matches fs.ErrNotExist.
func With[T any](ctx context.Context, dir, name string, do func(*os.File) (T, error)) (T, error) {
	return mount.RunAbandonable(ctx, "use of the image", filepath.Join(dir, name), func() (T, error) {
		value, err := use(dir, name, do)
		// An abandoned do still uses the file, so this goroutine waits for its end.
		var lost *mount.AbandonedError
		if errors.As(err, &lost) {
			<-lost.Done()
		}
		return value, err
	})
}

// use is With without a context: it waits for do.
func use[T any](path, name string, do func(*os.File) (T, error)) (T, error) {
	dir, err := OpenDir(path)
	if err != nil {
		return *new(T), err
	}
	defer dir.Close()
	file, err := dir.Open(name, os.O_RDONLY)
	if err != nil {
		return *new(T), err
	}
	defer file.Close()
	return do(file)
}
