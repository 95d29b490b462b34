package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
)

// This file keeps the indexes of the actual state. All of it runs with the lock held.

// reindex puts a volume that may have changed into the rosters where it belongs.
func (a *ActualStateOfWorld) reindex(name v1.UniqueVolumeName) {
	v := a.volumes[name]
	if v == nil {
		return
	}
	if !v.ofPlugin.taken {
		a.byPlugin.join(v.plugin.name, &v.ofPlugin)
	}
	for _, place := range [...]struct {
		belongs bool
		in      *roster[*knownVolume]
		at      *seat[*knownVolume]
	}{
		{v.plugin.attachable, &a.attachables, &v.ofAttachables},
		{v.mounts.count == 0, &a.idle, &v.ofIdle},
		{v.device == operationexecutor.DeviceGloballyMounted, &a.staged, &v.ofStaged},
	} {
		if place.belongs {
			place.in.join(place.at)
		} else {
			place.in.leave(place.at)
		}
	}
}

// forget takes a volume out of everything.
func (a *ActualStateOfWorld) forget(v *knownVolume) {
	a.byPlugin.leave(v.plugin.name, &v.ofPlugin)
	a.attachables.leave(&v.ofAttachables)
	a.idle.leave(&v.ofIdle)
	a.staged.leave(&v.ofStaged)
	a.paths.drop(v.ofDevicePath)
	a.paths.drop(v.ofDeviceMountPath)
	delete(a.volumes, v.name)
}

// setPaths replaces the paths of a volume by those that are not empty.
func (a *ActualStateOfWorld) setPaths(v *knownVolume, devicePath, deviceMountPath string) {
	if devicePath == "" {
		devicePath = v.devicePath
	}
	if deviceMountPath == "" {
		deviceMountPath = v.deviceMountPath
	}
	a.replacePaths(v, devicePath, deviceMountPath)
}

// replacePaths replaces the paths of a volume; empty means none. Its set-ups tell the same paths.
func (a *ActualStateOfWorld) replacePaths(v *knownVolume, devicePath, deviceMountPath string) {
	if v.devicePath == devicePath && v.deviceMountPath == deviceMountPath {
		return
	}
	v.devicePath, v.deviceMountPath = devicePath, deviceMountPath
	v.ofDevicePath = a.paths.move(v.ofDevicePath, PathUse{Path: devicePath, Kind: DevicePath, VolumeName: v.name})
	v.ofDeviceMountPath = a.paths.move(v.ofDeviceMountPath, PathUse{Path: deviceMountPath, Kind: DeviceMountPath, VolumeName: v.name})
	for x := range v.mounts.all {
		m := *x.row
		m.DevicePath, m.DeviceMountPath = devicePath, deviceMountPath
		a.mounts.replace(x, &m)
	}
}

// setMount adds or replaces a set-up.
func (a *ActualStateOfWorld) setMount(v *knownVolume, m *knownMount) {
	m.ofPath = a.paths.move(m.ofPath, PathUse{Path: m.MountPath, Kind: MountPath, VolumeName: v.name, PodName: m.PodName})
	a.mounts.put(&v.mounts, pairKey{v.name, m.PodName}, m)
}

// dropMount takes a set-up out.
func (a *ActualStateOfWorld) dropMount(v *knownVolume, m *knownMount) {
	a.paths.drop(m.ofPath)
	a.mounts.remove(&v.mounts, pairKey{v.name, m.PodName})
}
