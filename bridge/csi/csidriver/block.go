package csidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// device is a raw block volume of one pod. The driver publishes each pod's device at its own file. The executor maps
// that file.
type device struct {
	volume.MetricsNil

	plugin *Plugin
	src    source // empty when the device is unmapped
	name   string
	podUID types.UID
}

var (
	_ volume.CustomBlockVolumeMapper   = (*device)(nil)
	_ volume.CustomBlockVolumeUnmapper = (*device)(nil)
)

// NewBlockVolumeMapper implements [volume.BlockVolumePlugin].
func (p *Plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	src, err := p.sourceOf(spec)
	if err != nil {
		return nil, err
	}
	if !src.block {
		return nil, fmt.Errorf("volume %q has volumeMode Filesystem: it is mounted: %w", spec.Name(), volume.ErrUnsupported)
	}
	if _, err := p.node.podPath(spec.Name(), pod.UID); err != nil {
		return nil, err
	}
	if err := checkPodOfDevice(pod.UID); err != nil {
		return nil, err
	}
	return &device{plugin: p, src: src, name: spec.Name(), podUID: pod.UID}, nil
}

// NewBlockVolumeUnmapper implements [volume.BlockVolumePlugin].
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

// ConstructBlockVolumeSpec implements [volume.BlockVolumePlugin]. The pod's link leads to the path at which the driver
// published the volume. The spec comes from the record of that path.
func (p *Plugin) ConstructBlockVolumeSpec(podUID types.UID, volumeName, mapPath string) (*volume.Spec, error) {
	if err := volume.CheckPathElement(volumeName); err != nil {
		return nil, err
	}
	target, err := os.Readlink(mapPath)
	if err != nil {
		return nil, fmt.Errorf("volume %q: no link to a device: %w: %w", volumeName, volume.ErrInvalid, err)
	}
	dir, pod := filepath.Split(target)
	path := publishedDevice(filepath.Clean(dir), podUID)
	rec, known, err := p.node.mountPoints.records.read(path)
	if err == nil && (!known || pod != string(podUID) || rec.Kind != published) {
		err = errors.New("nothing is on record of it")
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q: %q leads to %q: %w: %w", volumeName, mapPath, target, err, volume.ErrInvalid)
	}
	block := v1.PersistentVolumeBlock
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		VolumeMode: &block,
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: p.options.Driver, VolumeHandle: rec.VolumeID,
		}},
	}}
	pv.Name = volumeName
	return volume.NewSpecFromPersistentVolume(pv, false), nil
}

// GetGlobalMapPath returns {root}/plugins/{plugin name}/volumeDevices/{hash of the handle}.
func (d *device) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	src, err := d.plugin.sourceOf(spec)
	if err != nil {
		return "", err
	}
	return d.plugin.node.globalMapPath(src), nil
}

// GetPodDeviceMapPath implements [volume.BlockVolume].
func (d *device) GetPodDeviceMapPath() (dir, linkName string) {
	return d.plugin.host.GetPodVolumeDeviceDir(d.podUID, d.plugin.name), d.name
}

// A driver's mounts are in the global map path of their volume: a path of a mount identifies its volume. The binds of
// pods are in the same directory, by UID.
const (
	stagedInMapPath    = "csi-staged"
	publishedInMapPath = "csi-published"
)

func (n *nodeService) globalMapPath(src source) string {
	return filepath.Join(n.host.GetVolumeDevicePluginDir(n.name), nameInPath(src.csi.VolumeHandle))
}

// stagedDevice returns the path at which the device of a global map path is staged.
func stagedDevice(globalMapPath string) string { return filepath.Join(globalMapPath, stagedInMapPath) }

// publishedDevice returns the file at which the driver publishes the device of a global map path for a pod.
func publishedDevice(globalMapPath string, podUID types.UID) string {
	return filepath.Join(globalMapPath, publishedInMapPath, string(podUID))
}

// checkPodOfDevice returns an error if a pod's UID cannot name its own device file beside those of other pods and the
// driver's directories.
func checkPodOfDevice(uid types.UID) error {
	if uid == stagedInMapPath || uid == publishedInMapPath {
		return fmt.Errorf("a pod that has the UID %q gets no device, since a directory has that name: %w", uid, volume.ErrInvalid)
	}
	return volume.CheckPathElement(string(uid))
}

// GetStagingPath implements [volume.CustomBlockVolumeMapper]. A record that cannot be read may be that of a staging.
func (d *device) GetStagingPath() string {
	if stages, err := d.plugin.node.stages(d.src); err == nil && !stages {
		return ""
	}
	return d.plugin.node.stagingPath(d.src)
}

// SetUpDevice implements [volume.CustomBlockVolumeMapper].
func (d *device) SetUpDevice(ctx context.Context, args volume.SetUpDeviceArgs) (string, error) {
	path := d.GetStagingPath()
	if path == "" {
		return "", nil
	}
	return path, d.plugin.node.stage(ctx, staging{src: d.src, path: path, devicePath: args.DevicePath})
}

// MapPodDevice implements [volume.CustomBlockVolumeMapper].
func (d *device) MapPodDevice(ctx context.Context, args volume.MapPodDeviceArgs) (string, error) {
	if err := checkPodOfDevice(args.PodUID); err != nil {
		return "", err
	}
	path := publishedDevice(args.GlobalMapPath, args.PodUID)
	return path, d.plugin.node.publish(ctx, publication{src: d.src, path: path})
}

// UnmapPodDevice implements [volume.CustomBlockVolumeUnmapper].
func (d *device) UnmapPodDevice(ctx context.Context, args volume.UnmapPodDeviceArgs) error {
	if err := checkPodOfDevice(args.PodUID); err != nil {
		return err
	}
	path := publishedDevice(args.GlobalMapPath, args.PodUID)
	if err := d.plugin.node.tearDown(ctx, path, published); err != nil {
		return err
	}
	return removeEmpty(filepath.Dir(path))
}

// TearDownDevice implements [volume.CustomBlockVolumeUnmapper].
func (d *device) TearDownDevice(ctx context.Context, args volume.TearDownDeviceArgs) error {
	return d.plugin.node.tearDown(ctx, stagedDevice(args.MapPath), staged)
}
