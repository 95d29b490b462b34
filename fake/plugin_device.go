package fake

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// CanAttach implements [volume.AttachableVolumePlugin]: what has a handle is attached.
func (p *Plugin) CanAttach(spec *volume.Spec) (bool, error) {
	v, err := p.volumeOf(spec)
	return v.handle != "", err
}

// FencesCalls implements [volume.FencingVolumePlugin].
func (p *Plugin) FencesCalls() bool { return !p.options.IgnoreFencing }

// fenced returns the context of a call as the storage looks at it.
func (p *Plugin) fenced(ctx context.Context) context.Context {
	if p.options.IgnoreFencing {
		return context.Background() //nolint:forbidigo // It has no token, and the backend reads nothing else.
	}
	return ctx
}

// CanDeviceMount implements [volume.DeviceMountableVolumePlugin]: what has a handle is staged.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	v, err := p.volumeOf(spec)
	return v.handle != "", err
}

// SetUpIsMount implements [volume.MountingVolumePlugin].
func (p *Plugin) SetUpIsMount(*volume.Spec) bool { return true }

// MountDeviceIsMount implements [volume.MountingVolumePlugin].
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return true }

// CanReuse implements [volume.ReusableVolumePlugin].
func (p *Plugin) CanReuse(*volume.Spec) bool { return p.options.Reuse }

// NewAttacher implements [volume.AttachableVolumePlugin].
func (p *Plugin) NewAttacher() (volume.Attacher, error) { return &device{plugin: p}, nil }

// NewDetacher implements [volume.AttachableVolumePlugin].
func (p *Plugin) NewDetacher() (volume.Detacher, error) { return &device{plugin: p}, nil }

// NewDeviceMounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &device{plugin: p}, nil }

// NewDeviceUnmounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &device{plugin: p}, nil }

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) GetDeviceMountRefs(ctx context.Context, deviceMountPath string) ([]string, error) {
	return p.options.Mounter.GetMountRefs(ctx, deviceMountPath)
}

// GetVolumeLimits implements [volume.VolumePluginWithAttachLimits].
func (p *Plugin) GetVolumeLimits(ctx context.Context) (map[string]int64, error) {
	limits := map[string]int64{}
	err := p.log.run(ctx, Call{Method: MethodGetVolumeLimits}, func() error {
		if p.options.AttachLimit > 0 {
			limits[p.VolumeLimitKey(nil)] = p.options.AttachLimit
		}
		return nil
	})
	return limits, err
}

// VolumeLimitKey implements [volume.VolumePluginWithAttachLimits].
func (p *Plugin) VolumeLimitKey(*volume.Spec) string {
	return "attachable-volumes-csi-" + volume.DriverOfPluginName(p.options.Name)
}

// BulkVerifyVolumes implements [volume.BulkVolumeVerifier].
func (p *Plugin) BulkVerifyVolumes(
	ctx context.Context, volumesByNode map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec,
) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error) {
	answer := map[types.NodeName]map[v1.UniqueVolumeName]bool{}
	err := p.log.run(ctx, Call{Method: MethodBulkVerifyVolumes}, func() error {
		for node, specs := range volumesByNode {
			answer[node] = p.attachedTo(node, specs)
		}
		return nil
	})
	return answer, err
}

// ListAttachments implements [volume.AttachmentLister].
func (p *Plugin) ListAttachments(ctx context.Context) ([]volume.Attachment, error) {
	var found []volume.Attachment
	err := p.log.run(ctx, Call{Method: MethodListAttachments}, func() error {
		for _, handle := range p.options.Backend.Handles() {
			for _, node := range p.options.Backend.Nodes(handle) {
				found = append(found, volume.Attachment{VolumeName: handle, NodeName: node})
			}
		}
		return nil
	})
	return found, err
}

// attachedTo leaves out what it cannot name.
func (p *Plugin) attachedTo(node types.NodeName, specs map[v1.UniqueVolumeName]*volume.Spec) map[v1.UniqueVolumeName]bool {
	answer := make(map[v1.UniqueVolumeName]bool, len(specs))
	for name, spec := range specs {
		if v, err := p.volumeOf(spec); err == nil {
			answer[name] = p.options.Backend.attached(v.handle, node)
		}
	}
	return answer
}

// device implements volume.Attacher and volume.Detacher.
type device struct{ plugin *Plugin }

var (
	_ volume.Attacher = (*device)(nil)
	_ volume.Detacher = (*device)(nil)
)

// stored reads a spec that must have a handle.
func (d *device) stored(spec *volume.Spec) (volumeInfo, error) {
	v, err := d.plugin.volumeOf(spec)
	if err == nil && v.handle == "" {
		err = fmt.Errorf("plugin %q: volume %q has no handle: set volumeHandle, or attribute %q: %w",
			d.plugin.options.Name, v.name, ParameterHandle, volume.ErrInvalid)
	}
	return v, err
}

func (d *device) Attach(ctx context.Context, spec *volume.Spec, nodeName types.NodeName) (string, error) {
	v, err := d.stored(spec)
	if err != nil {
		return "", err
	}
	call := Call{Method: MethodAttach, Volume: v.name, Node: nodeName, Path: devicePath(v.handle)}
	err = d.plugin.log.run(ctx, call, func() error {
		return d.plugin.options.Backend.attach(d.plugin.fenced(ctx), v, nodeName)
	})
	if err != nil {
		return "", err
	}
	return call.Path, nil
}

func (d *device) VolumesAreAttached(
	ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, nodeName types.NodeName,
) (map[v1.UniqueVolumeName]bool, error) {
	answer := map[v1.UniqueVolumeName]bool{}
	call := Call{Method: MethodVolumesAreAttached, Node: nodeName}
	err := d.plugin.log.run(ctx, call, func() error {
		answer = d.plugin.attachedTo(nodeName, specs)
		return nil
	})
	return answer, err
}

func (d *device) WaitForAttach(ctx context.Context, spec *volume.Spec, _ string, pod *v1.Pod) (string, error) {
	v, err := d.stored(spec)
	if err != nil {
		return "", err
	}
	host, err := d.plugin.host.get()
	if err != nil {
		return "", err
	}
	call := Call{Method: MethodWaitForAttach, Volume: v.name, Node: host.GetNodeName(), Path: devicePath(v.handle)}
	if pod != nil {
		call.Pod = pod.UID
	}
	err = d.plugin.log.run(ctx, call, func() error {
		if !d.plugin.options.Backend.attached(v.handle, host.GetNodeName()) {
			return volume.Transient(fmt.Errorf("volume %q is not attached to node %q", v.name, host.GetNodeName()))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return call.Path, nil
}

func (d *device) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	v, err := d.stored(spec)
	if err != nil {
		return "", err
	}
	return d.plugin.stagePath(v.handle)
}

func (d *device) MountDevice(
	ctx context.Context, spec *volume.Spec, devicePath, deviceMountPath string, _ volume.DeviceMounterArgs,
) error {
	v, err := d.stored(spec)
	if err != nil {
		return err
	}
	call := Call{Method: MethodMountDevice, Volume: v.name, Path: deviceMountPath}
	return d.plugin.log.run(ctx, call, func() error {
		source := devicePath
		if source == "" {
			source = v.handle
		}
		err := d.plugin.mountNew(ctx, mount.Request{
			Source: source, Target: deviceMountPath, FSType: d.plugin.options.FSType,
			Options: append(append([]string{"nosuid", "nodev"}, v.mountOptions...), d.plugin.sizeOption(v)...),
		}, v.handle)
		if err != nil {
			return fmt.Errorf("staging volume %q: %w", v.name, err)
		}
		return nil
	})
}

// sizeOption makes what is mounted as large as the volume, where its filesystem is one that can be told.
func (p *Plugin) sizeOption(v volumeInfo) []string {
	size, _ := p.options.Backend.Size(v.handle)
	if size == 0 || p.options.FSType != "tmpfs" {
		return nil
	}
	return []string{"size=" + strconv.FormatInt(size, 10)}
}

func (d *device) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	call := Call{Method: MethodUnmountDevice, Volume: filepath.Base(deviceMountPath), Path: deviceMountPath}
	return d.plugin.log.run(ctx, call, func() error {
		if err := d.plugin.unmount(ctx, deviceMountPath); err != nil {
			return fmt.Errorf("unstaging volume at %s: %w", deviceMountPath, err)
		}
		return nil
	})
}

func (d *device) Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error {
	call := Call{Method: MethodDetach, Volume: volumeName, Node: nodeName}
	return d.plugin.log.run(ctx, call, func() error {
		return d.plugin.options.Backend.detach(d.plugin.fenced(ctx), volumeName, nodeName)
	})
}
