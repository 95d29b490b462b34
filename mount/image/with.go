package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

// With calls do with an image that it opens for reading, which is all that attaching needs, and closes then. It returns when ctx
// ends, also while the filesystem of the images hangs: the error is then an *mount.AbandonedError. A missing image or directory is an
// error that matches fs.ErrNotExist.
func With[T any](ctx context.Context, dir, name string, do func(*os.File) (T, error)) (T, error) {
	return mount.RunAbandonable(ctx, "use of the image", filepath.Join(dir, name), func() (T, error) {
		value, err := use(dir, name, do)
		// An abandoned do still has the file: this call ends with it.
		var lost *mount.AbandonedError
		if errors.As(err, &lost) {
			<-lost.Done()
		}
		return value, err
	})
}

// use is With without a bound.
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
