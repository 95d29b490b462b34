package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// CanClone implements [volume.CloneableVolumePlugin]: what has a handle can be copied.
func (p *Plugin) CanClone(source *volume.Spec) (bool, error) {
	v, err := p.volumeOf(source)
	return v.handle != "" && source.PersistentVolume != nil, err
}

// checkSource refuses a source of data that is no volume of this plugin.
func (p *Plugin) checkSource(options volume.VolumeOptions) error {
	if options.Snapshot != nil {
		return p.checkRestore(options)
	}
	if options.Source == nil {
		if namesSource(options.PVC) && !p.options.Backend.has(options.PVName) { // One that is there was filled before its source went.
			return fmt.Errorf("plugin %q: volume %q: its data source gives no volume that can be copied: %w",
				p.options.Name, options.PVName, volume.ErrInfeasible)
		}
		return nil
	}
	_, err := p.persistent(volume.NewSpecFromPersistentVolume(options.Source, false))
	return err
}

// namesSource reports whether a claim names a data source.
func namesSource(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil
}

// contentFor returns what a volume holds: the files of its stage, where it is mounted, and else what it was made with. The
// content of a fake volume ends with its last mount.
func (p *Plugin) contentFor(ctx context.Context, source *v1.PersistentVolume) (map[string][]byte, error) {
	v, err := p.persistent(volume.NewSpecFromPersistentVolume(source, false))
	if err != nil {
		return nil, err
	}
	stage, err := p.stagePath(v.handle)
	if err != nil {
		return nil, err
	}
	content := p.options.Backend.contentOf(v.handle)
	mounted, err := p.mounted(ctx, stage)
	if err == nil && mounted {
		content, err = readTree(filesOf(p.options.Mounter), stage)
	}
	if err != nil {
		return nil, fmt.Errorf("reading volume %q, which is to be copied: %w", source.Name, err)
	}
	return content, nil
}

// mountNew mounts a filesystem of the plugin's own, with what its volume was made with.
func (p *Plugin) mountNew(ctx context.Context, request mount.Request, handle string) error {
	mounted, err := p.mounted(ctx, request.Target)
	if err != nil || mounted {
		return err
	}
	if err := p.options.Mounter.Mount(ctx, request); err != nil {
		return err
	}
	return writeTree(filesOf(p.options.Mounter), request.Target, p.options.Backend.contentOf(handle))
}

// files are those that are reached through a mounter's mounts.
type files interface {
	ReadDir(name string) ([]fs.DirEntry, error)
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, data []byte, perm fs.FileMode) error
	MkdirAll(name string, perm fs.FileMode) error
}

// filesOf returns the files of a mounter, which may be wrapped: those of the machine where it has none of its own.
func filesOf(mounter mount.Interface) files {
	for {
		if own, ok := mounter.(files); ok {
			return own
		}
		wrapper, ok := mounter.(interface{ Unwrap() mount.Interface })
		if !ok {
			return machineFiles{}
		}
		mounter = wrapper.Unwrap()
	}
}

// machineFiles are the files of the machine.
type machineFiles struct{}

func (machineFiles) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (machineFiles) ReadFile(name string) ([]byte, error)         { return os.ReadFile(name) }
func (machineFiles) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (machineFiles) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(name, data, perm)
}

// readTree returns the regular files beneath dir by their relative paths.
func readTree(from files, dir string) (map[string][]byte, error) {
	entries, err := from.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	content := map[string][]byte{}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir():
			below, err := readTree(from, name)
			if err != nil {
				return nil, err
			}
			for sub, data := range below {
				content[path.Join(e.Name(), sub)] = data
			}
		case e.Type().IsRegular():
			if content[e.Name()], err = from.ReadFile(name); err != nil {
				return nil, err
			}
		}
	}
	return content, nil
}

// writeTree is the reverse of readTree.
func writeTree(to files, dir string, content map[string][]byte) error {
	var errs []error
	for name, data := range content {
		target := path.Join(dir, name)
		err := to.MkdirAll(path.Dir(target), 0o755)
		if err == nil {
			err = to.WriteFile(target, data, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// contentOf returns what a volume was made with; a copy.
func (b *Backend) contentOf(handle string) map[string][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.volumes[handle]; ok {
		return maps.Clone(v.content)
	}
	return nil
}

// createWith makes a volume with content, unless it is there.
func (b *Backend) createWith(handle string, size int64, content map[string][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.volumes[handle]; ok {
		return
	}
	v := b.ensure(handle)
	v.size, v.content = size, content
}
