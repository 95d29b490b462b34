package cache

import (
	"github.com/volumekit/volumekit/operationexecutor"
)

// This file keeps the indexes of the actual state. All of it runs with the lock held.

// reindex puts a volume that may have changed into the rosters where it belongs.
func (a *ActualStateOfWorld) reindex(v *knownVolume) {
	a.byPlugin.join(v.plugin.name, &v.ofPlugin)
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

// setFacts replaces what is known of the volume's plugin.
func (v *knownVolume) setFacts(facts pluginFacts) {
	if v.plugin == facts {
		return
	}
	v.plugin = facts
	for x := range v.mounts.all {
		v.setRefreshable(x)
	}
}

// forget takes a volume, which is not staged, out of everything.
func (a *ActualStateOfWorld) forget(v *knownVolume) {
	a.byPlugin.leave(v.plugin.name, &v.ofPlugin)
	a.attachables.leave(&v.ofAttachables)
	a.idle.leave(&v.ofIdle)
	a.movePaths(v, "", "")
	delete(a.volumes, v.name)
	a.spares.give(v)
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
	a.movePaths(v, devicePath, deviceMountPath)
	for x := range v.mounts.all {
		m := *x.row.Load()
		m.DevicePath, m.DeviceMountPath = devicePath, deviceMountPath
		x.row.Store(&m)
	}
}

func (a *ActualStateOfWorld) movePaths(v *knownVolume, devicePath, deviceMountPath string) {
	a.paths.move(pathOwner{volume: v, kind: DevicePath}, v.devicePath, devicePath)
	a.paths.move(pathOwner{volume: v, kind: DeviceMountPath}, v.deviceMountPath, deviceMountPath)
	v.devicePath, v.deviceMountPath = devicePath, deviceMountPath
}

// setMount adds a set-up, or replaces old, which is nil where there is none.
func (a *ActualStateOfWorld) setMount(v *knownVolume, m, old *MountedVolume) {
	x := a.mounts.put(&v.mounts, m.PodName, m)
	var from string
	if old != nil {
		from = old.MountPath
	}
	a.paths.move(pathOwner{v, x, MountPath}, from, m.MountPath)
	v.setRefreshable(x)
	a.reindex(v)
}

// dropMount takes a set-up out.
func (a *ActualStateOfWorld) dropMount(v *knownVolume, x *pair[MountedVolume]) {
	a.paths.move(pathOwner{v, x, MountPath}, x.row.Load().MountPath, "")
	a.mounts.remove(&v.mounts, x)
	a.reindex(v)
}

// usesOfPath returns who uses a path. The index by path is made when it is asked for the first time: most never ask.
func (a *ActualStateOfWorld) usesOfPath(path string) []PathUse {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.paths.first == nil {
		a.paths = newPaths()
		for _, v := range a.volumes {
			a.paths.move(pathOwner{volume: v, kind: DevicePath}, "", v.devicePath)
			a.paths.move(pathOwner{volume: v, kind: DeviceMountPath}, "", v.deviceMountPath)
			for x := range v.mounts.all {
				a.paths.move(pathOwner{v, x, MountPath}, "", x.row.Load().MountPath)
			}
		}
	}
	return a.paths.at(path)
}
