package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// deleter's path is that of the image: a volume that is deleted is set up nowhere.
type deleter struct {
	volume.MetricsNil

	plugin *Plugin
	handle string
}

// NewDeleter implements volume.DeletableVolumePlugin. It does no I/O.
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return nil, err
	}
	return &deleter{plugin: p, handle: src.handle}, nil
}

// GetPath returns the absolute path of the image.
func (d *deleter) GetPath() string { return d.plugin.devices.images.path(d.handle) }

// Delete implements volume.Deleter: an image that is attached is left whole.
func (d *deleter) Delete(ctx context.Context) error {
	dir, err := image.OpenDir(d.plugin.devices.images.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	err = d.plugin.devices.delete(ctx, dir, d.handle+imageSuffix)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = dir.RemoveLeftOver(d.handle + partialSuffix)
	}
	if err != nil {
		return fmt.Errorf("deleting the image of volume %q: %w", d.handle, classify(err))
	}
	return nil
}

// delete removes an image that is attached nowhere.
func (v *devices) delete(ctx context.Context, dir *image.Dir, name string) error {
	file, err := dir.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	return v.loops.WhileDetached(ctx, file, func() error { return dir.Remove(name, file) })
}
