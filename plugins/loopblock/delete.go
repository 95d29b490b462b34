package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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
func (d *deleter) GetPath() string { return d.plugin.imagePath(d.handle) }

// Delete implements volume.Deleter: an image that is attached is left whole.
func (d *deleter) Delete(ctx context.Context) error {
	dir, err := d.plugin.openImages()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if err := dir.delete(ctx, d.handle); err != nil {
		return fmt.Errorf("deleting the image of volume %q: %w", d.handle, classify(err))
	}
	return dir.removeLeftOver(d.handle)
}
