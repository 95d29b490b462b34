package local

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// source holds the checked fields of a spec.
type source struct {
	name string
	// pv is the volume; the plugin does not change it.
	pv   *v1.PersistentVolume
	path string
	// fsType is the filesystem that a device must have, and that a blank device gets. If it is empty, any filesystem is accepted, and
	// a blank device gets ext4.
	fsType string
	// options are the mount options of the PersistentVolume.
	options []string
	// readOnly is true if no pod may write to the volume. podReadOnly is true if this pod must not; readOnly implies it.
	readOnly, podReadOnly bool
}

// localOf returns the local source of spec; nil if it has none.
func localOf(spec *volume.Spec) *v1.LocalVolumeSource {
	if spec == nil || spec.PersistentVolume == nil {
		return nil
	}
	return spec.PersistentVolume.Spec.Local
}

// nameOf returns the name of the volume, which is an element of its paths. It checks nothing else: the spec of a volume that was
// found after a restart has only the name. The errors of this function and of those below match volume.ErrInvalid.
func nameOf(spec *volume.Spec) (string, error) {
	if localOf(spec) == nil {
		return "", fmt.Errorf("volume %q has no local source: it is not one of %s: %w", spec.Name(), Name, volume.ErrInvalid)
	}
	if err := volume.CheckPathElement(spec.Name()); err != nil {
		return "", fmt.Errorf("local volume: %w", err)
	}
	return spec.Name(), nil
}

// filesystemNameOf is nameOf for a volume with a filesystem. For a block volume, the error matches volume.ErrUnsupported.
func filesystemNameOf(spec *volume.Spec) (string, error) {
	name, err := nameOf(spec)
	if err != nil {
		return "", err
	}
	filesystem, err := volume.CheckVolumeModeFilesystem(spec)
	if err == nil && !filesystem {
		err = fmt.Errorf("local volume %q has volumeMode Block: it is mapped and not mounted: %w", name, volume.ErrUnsupported)
	}
	return name, err
}

// sourceOf reads and checks the spec of a volume before it is staged, set up or mapped.
func sourceOf(spec *volume.Spec) (source, error) {
	name, err := nameOf(spec)
	if err != nil {
		return source{}, err
	}
	src := source{name: name, pv: spec.PersistentVolume, path: localOf(spec).Path, options: volume.MountOptionFromSpec(spec)}
	if fsType := localOf(spec).FSType; fsType != nil {
		src.fsType = *fsType
	}
	if err := src.check(spec.PersistentVolume); err != nil {
		return source{}, fmt.Errorf("local volume %q: %w", name, err)
	}
	src.path = filepath.Clean(src.path)
	src.readOnly = slices.Contains(src.options, "ro")
	src.podReadOnly = src.readOnly || spec.ReadOnly
	return src, nil
}

func (s source) check(pv *v1.PersistentVolume) error {
	switch {
	case !volume.HasNodeAffinity(pv):
		return fmt.Errorf("it has no nodeAffinity: name the node that has %q: %w", s.path, volume.ErrInvalid)
	case !filepath.IsAbs(s.path):
		return fmt.Errorf("path %q: give the absolute path of a directory or of a block device: %w", s.path, volume.ErrInvalid)
	case strings.ContainsRune(s.path, 0):
		return fmt.Errorf("path %q holds a NUL: remove it: %w", s.path, volume.ErrInvalid)
	}
	if err := volume.ValidatePathNoBacksteps(s.path); err != nil {
		return err
	}
	return volume.CheckMountOptions(s.options)
}
