package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

func (p *plantedPlugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	disk, err := p.GetVolumeName(spec)
	return &plantedDeviceOfPod{p: p, name: spec.Name(), disk: disk, pod: pod.UID}, err
}

func (p *plantedPlugin) NewBlockVolumeUnmapper(name string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	return &plantedDeviceOfPod{p: p, name: name, disk: name, pod: podUID}, volume.CheckPathElement(name)
}

func (p *plantedPlugin) ConstructBlockVolumeSpec(_ types.UID, name, _ string) (*volume.Spec, error) {
	mode := v1.PersistentVolumeBlock
	if p.has("a device that is found is taken for a filesystem") {
		mode = v1.PersistentVolumeFilesystem
	}
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{VolumeMode: &mode, PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: plantedDriver, VolumeHandle: name},
		}},
	}, false), volume.CheckPathElement(name)
}

// plantedDeviceOfPod maps a disk, whose name is that of its volume, for one pod.
type plantedDeviceOfPod struct {
	p          *plantedPlugin
	name, disk string
	pod        types.UID
}

func (d *plantedDeviceOfPod) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	name, err := d.p.GetVolumeName(spec)
	if err != nil {
		return "", err
	}
	if d.p.has("all devices are mapped at one path") {
		name = "device"
	}
	return filepath.Join(d.p.host.GetVolumeDevicePluginDir(plantedName), name), nil
}

func (d *plantedDeviceOfPod) GetPodDeviceMapPath() (dir, linkName string) {
	if d.p.has("all devices of a pod have one link") {
		return d.p.host.GetPodVolumeDeviceDir(d.pod, plantedName), "device"
	}
	return d.p.host.GetPodVolumeDeviceDir(d.pod, plantedName), d.name
}

func (d *plantedDeviceOfPod) GetStagingPath() string { return "" }

// mapped is the path of the device that pods get, which is there while the disk is set up.
func (d *plantedDeviceOfPod) mapped() string {
	name := d.disk
	if d.p.has("devices are named by twelve bytes") && len(name) > 12 {
		name = name[:12]
	}
	return "/dev/mapped/" + name
}

func (d *plantedDeviceOfPod) SetUpDevice(ctx context.Context, _ volume.SetUpDeviceArgs) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	world := d.p.storage.world
	if _, err := world.Lstat(d.mapped()); err == nil {
		return "", nil
	}
	if err := world.MkdirAll("/dev/mapped", 0o755); err != nil {
		return "", err
	}
	return "", world.Symlink(plantedDevice(d.disk), d.mapped())
}

func (d *plantedDeviceOfPod) MapPodDevice(ctx context.Context, _ volume.MapPodDeviceArgs) (string, error) {
	if d.p.has("MapPodDevice keeps a descriptor") {
		d.p.storage.keepOpen()
	}
	return d.mapped(), ctx.Err()
}

func (d *plantedDeviceOfPod) UnmapPodDevice(ctx context.Context, _ volume.UnmapPodDeviceArgs) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.p.has("UnmapPodDevice takes the device from every pod") {
		return d.unmap(d.mapped())
	}
	return nil
}

func (d *plantedDeviceOfPod) TearDownDevice(ctx context.Context, _ volume.TearDownDeviceArgs) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	world := d.p.storage.world
	if d.p.has("TearDownDevice discards what was written") {
		_ = world.WriteFile(d.mapped(), nil, 0o660)
	}
	if d.p.has("TearDownDevice takes every device whose name begins like this") {
		devices, _ := world.ReadDir("/dev/mapped")
		for _, device := range devices {
			if strings.HasPrefix(device.Name(), d.disk) {
				_ = d.unmap("/dev/mapped/" + device.Name())
			}
		}
	}
	return d.unmap(d.mapped())
}

func (d *plantedDeviceOfPod) unmap(path string) error {
	err := d.p.storage.world.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
