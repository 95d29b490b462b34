package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// device is a raw block volume of one pod.
type device struct {
	plugin *Plugin
	name   string
	podUID types.UID // empty where the device itself is torn down
}

// mapper finds the device of a volume.
type mapper struct {
	device
	src source
}

var (
	_ volume.CustomBlockVolumeMapper = (*mapper)(nil)
	_ volume.BlockVolumeUnmapper     = (*device)(nil)
)

// NewBlockVolumeMapper implements [volume.BlockVolumePlugin]. A volume with volumeMode Filesystem, and one that is read-only,
// are errors that match volume.ErrUnsupported.
func (p *Plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return nil, err
	}
	filesystem, err := volume.CheckVolumeModeFilesystem(spec)
	switch {
	case err != nil:
		return nil, err
	case filesystem:
		return nil, fmt.Errorf("local volume %q has volumeMode Filesystem: it is mounted and not mapped: %w", src.name, volume.ErrUnsupported)
	case src.podReadOnly:
		return nil, fmt.Errorf("local volume %q is read-only, and a pod writes to a device all the same: ask for it writable: %w",
			src.name, volume.ErrUnsupported)
	case pod == nil:
		return nil, fmt.Errorf("local volume %q: the pod is nil: %w", src.name, volume.ErrInvalid)
	}
	if err := volume.CheckPathElement(string(pod.UID)); err != nil {
		return nil, fmt.Errorf("local volume %q: UID of the pod: %w", src.name, err)
	}
	return &mapper{device: device{plugin: p, name: src.name, podUID: pod.UID}, src: src}, nil
}

// NewBlockVolumeUnmapper implements [volume.BlockVolumePlugin].
func (p *Plugin) NewBlockVolumeUnmapper(name string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	if err := volume.CheckPathElement(name); err != nil {
		return nil, fmt.Errorf("local volume: %w", err)
	}
	if podUID != "" {
		if err := volume.CheckPathElement(string(podUID)); err != nil {
			return nil, fmt.Errorf("local volume %q: UID of the pod: %w", name, err)
		}
	}
	return &device{plugin: p, name: name, podUID: podUID}, nil
}

// GetGlobalMapPath implements [volume.BlockVolume]: {root}/plugins/kubernetes.io/local-volume/volumeDevices/{name}.
func (d *device) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	name, err := nameOf(spec)
	if err != nil {
		return "", err
	}
	return filepath.Join(d.plugin.host.GetVolumeDevicePluginDir(Name), name), nil
}

// GetPodDeviceMapPath implements [volume.BlockVolume].
func (d *device) GetPodDeviceMapPath() (dir, linkName string) {
	return d.plugin.host.GetPodVolumeDeviceDir(d.podUID, Name), d.name
}

// GetStagingPath implements [volume.CustomBlockVolumeMapper]: there is none.
func (m *mapper) GetStagingPath() string { return "" }

// SetUpDevice implements [volume.CustomBlockVolumeMapper]: there is nothing to do but to look.
func (m *mapper) SetUpDevice(ctx context.Context, _ volume.SetUpDeviceArgs) (string, error) {
	return "", m.check(ctx)
}

// MapPodDevice implements [volume.CustomBlockVolumeMapper]: it returns the path of the volume, which must be that of a block
// device.
func (m *mapper) MapPodDevice(ctx context.Context, _ volume.MapPodDeviceArgs) (string, error) {
	return m.src.path, m.check(ctx)
}

func (m *mapper) check(ctx context.Context) error {
	found, err := m.plugin.find(ctx, m.src)
	if err == nil && !found.isDevice {
		err = fmt.Errorf("local volume %q has volumeMode Block, and %s is a directory: %w", m.name, m.src.path, volume.ErrInvalid)
	}
	return err
}

// ConstructBlockVolumeSpec implements [volume.BlockVolumePlugin]. mapPath is that of the pod's link, which must lead to the
// device of that volume and pod, also after a reboot, when nothing is bound there any more. The path of the volume is not
// known any more; it can be unmapped without it.
func (p *Plugin) ConstructBlockVolumeSpec(podUID types.UID, volumeName, mapPath string) (*volume.Spec, error) {
	if err := volume.CheckPathElement(volumeName); err != nil {
		return nil, fmt.Errorf("local volume at %s: %w", mapPath, err)
	}
	target, err := os.Readlink(mapPath)
	want := filepath.Join(p.host.GetVolumeDevicePluginDir(Name), volumeName, string(podUID))
	switch {
	case err != nil:
		return nil, fmt.Errorf("local volume %q: no link to a device: %w: %w", volumeName, volume.ErrInvalid, err)
	case target != want:
		return nil, fmt.Errorf("local volume %q: %s leads to %s and not to %s: %w", volumeName, mapPath, target, want, volume.ErrInvalid)
	}
	return reconstructed(volumeName, v1.PersistentVolumeBlock), nil
}
