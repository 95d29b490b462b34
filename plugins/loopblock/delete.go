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

// NewDeleter implements volume.DeletableVolumePlugin. It does no I/O. A volume whose node affinity does not name this node is an
// error that matches volume.ErrNodeAffinity: its image lies on another node, and an image of that name here is another volume.
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return nil, err
	}
	if err := volume.CheckNodeAffinityByName(src.pv, p.host.GetNodeName()); err != nil {
		return nil, fmt.Errorf("volume %q: nothing is deleted here: delete it on its own node, or name this one in its node affinity: %w",
			spec.Name(), err)
	}
	return &deleter{plugin: p, handle: src.handle}, nil
}

// GetPath returns the absolute path of the image.
func (d *deleter) GetPath() string { return d.plugin.devices.images.path(d.handle) }

// Delete implements volume.Deleter: an image that is attached is left whole. A volume is gone when its image is not in the directory of
// images. If that directory is missing, the image may be on a disk that is not mounted, and Delete fails.
func (d *deleter) Delete(ctx context.Context) error {
	dir, err := image.OpenDir(d.plugin.devices.images.dir)
	if err != nil {
		return fmt.Errorf("deleting the image of volume %q: the directory of images: %w", d.handle, err)
	}
	defer dir.Close()
	done, err := d.plugin.devices.attributeLocks.lock(ctx, d.handle)
	if err != nil {
		return err
	}
	defer done()
	err = d.plugin.devices.delete(ctx, dir, d.handle)
	if errors.Is(err, fs.ErrNotExist) {
		err = removeAttributes(dir, d.handle)
	}
	if err == nil {
		err = dir.RemoveLeftOver(d.handle + partialSuffix)
	}
	if err != nil {
		return fmt.Errorf("deleting the image of volume %q: %w", d.handle, classify(err))
	}
	return nil
}

// delete removes an image that is attached nowhere, after its attributes: a volume of the same name does not inherit them.
func (v *devices) delete(ctx context.Context, dir *image.Dir, handle string) error {
	name := handle + imageSuffix
	file, err := dir.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	return v.loops.WhileDetached(ctx, file, func() error {
		if err := removeAttributes(dir, handle); err != nil {
			return err
		}
		return dir.Remove(name, file)
	})
}
