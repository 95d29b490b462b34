package loopblock

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// device is a raw block volume of one pod. The pod needs only the loop device that WaitForAttach finds, so device
// implements neither the custom mapper nor the custom unmapper.
type device struct {
	plugin *Plugin
	name   string
	podUID types.UID // empty for the teardown of the device itself
}

// NewBlockVolumeMapper implements volume.BlockVolumePlugin. For a volume with volumeMode Filesystem, or one that is
// read-only for only this pod, the error matches volume.ErrUnsupported.
func (p *Plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	if _, err := deviceOf(spec); err != nil {
		return nil, err
	}
	if _, err := p.podPath(spec.Name(), pod.UID); err != nil {
		return nil, err
	}
	return &device{plugin: p, name: spec.Name(), podUID: pod.UID}, nil
}

// NewBlockVolumeUnmapper implements volume.BlockVolumePlugin.
func (p *Plugin) NewBlockVolumeUnmapper(name string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	if err := volume.CheckPathElement(name); err != nil {
		return nil, err
	}
	if podUID != "" {
		if err := volume.CheckPathElement(string(podUID)); err != nil {
			return nil, err
		}
	}
	return &device{plugin: p, name: name, podUID: podUID}, nil
}

// GetGlobalMapPath returns {root}/plugins/volumekit.io/loop-block/volumeDevices/{handle}.
func (d *device) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	return filepath.Join(d.plugin.mapsDir(), src.handle), nil
}

// GetPodDeviceMapPath implements volume.BlockVolume.
func (d *device) GetPodDeviceMapPath() (dir, linkName string) {
	return d.plugin.host.GetPodVolumeDeviceDir(d.podUID, Name), d.name
}

// mapsDir is the directory that holds the global map paths.
func (p *Plugin) mapsDir() string { return p.host.GetVolumeDevicePluginDir(Name) }

// ConstructBlockVolumeSpec implements volume.BlockVolumePlugin. mapPath is the path of the pod's link. The link's target
// contains the handle, even after a reboot, when nothing is bound there any more. If the path is not this plugin's link for
// that pod, the error matches volume.ErrInvalid. The spec has no access modes and no claim, because they are no longer
// known.
func (p *Plugin) ConstructBlockVolumeSpec(podUID types.UID, volumeName, mapPath string) (*volume.Spec, error) {
	if err := volume.CheckPathElement(volumeName); err != nil {
		return nil, err
	}
	target, err := os.Readlink(mapPath)
	if err != nil {
		return nil, fmt.Errorf("volume %q: no link to a device: %w: %w", volumeName, volume.ErrInvalid, err)
	}
	dir, pod := filepath.Split(target)
	maps, handle := filepath.Split(filepath.Clean(dir))
	if pod != string(podUID) || filepath.Clean(maps) != p.mapsDir() || checkHandle(handle) != nil {
		return nil, fmt.Errorf("volume %q: %q leads to %q, which is no device of pod %q in %q: %w",
			volumeName, mapPath, target, podUID, p.mapsDir(), volume.ErrInvalid)
	}
	return reconstructed(volumeName, handle, v1.PersistentVolumeBlock), nil
}
