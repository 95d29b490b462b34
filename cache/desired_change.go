package cache

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// This file holds the changes of a volume that come from elsewhere than its pods: the node's status, the claim, the plugin.

// MarkVolumesReportedInUse says which volumes the node's status lists as in use; all others are not listed. A volume that
// comes back after its last pod has left is not listed before the next call: that list may be older than its return.
func (d *DesiredStateOfWorld) MarkVolumesReportedInUse(reported []v1.UniqueVolumeName) {
	listed := make(map[v1.UniqueVolumeName]bool, len(reported))
	for _, name := range reported {
		listed[name] = true
	}
	var changed []v1.UniqueVolumeName
	d.mu.Lock()
	for name, v := range d.volumes {
		if v.reportedInUse != listed[name] {
			v.reportedInUse = listed[name]
			changed = append(changed, name)
		}
	}
	d.mu.Unlock()
	slices.Sort(changed)
	d.options.changed(changed...)
}

// UpdatePersistentVolumeSize says how large the PersistentVolume of a volume is meant to be.
func (d *DesiredStateOfWorld) UpdatePersistentVolumeSize(volumeName v1.UniqueVolumeName, size resource.Quantity) {
	d.change(volumeName, func(v *wantedVolume) bool {
		if v.size.Cmp(size) == 0 {
			return false
		}
		v.size = size.DeepCopy()
		return true
	})
}

// RefreshPlugin asks a plugin once more what it can do for each of the volumes that pods want of it: its driver has
// changed its mind, say. A volume about which it cannot be asked stays as it was.
func (d *DesiredStateOfWorld) RefreshPlugin(pluginName string) {
	specs := d.specsOfPlugin(pluginName)
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		facts, err := factsOf(d.plugins, specs[name], name)
		if err != nil {
			continue
		}
		d.change(name, func(v *wantedVolume) bool {
			before := v.plugin
			v.plugin = facts
			return v.plugin != before
		})
	}
}

// specsOfPlugin returns a spec of each volume of a plugin.
func (d *DesiredStateOfWorld) specsOfPlugin(pluginName string) map[v1.UniqueVolumeName]*volume.Spec {
	d.mu.RLock()
	defer d.mu.RUnlock()
	specs := map[v1.UniqueVolumeName]*volume.Spec{}
	for name, v := range d.volumes {
		if v.plugin.name == pluginName {
			specs[name] = v.pods[0].VolumeSpec
		}
	}
	return specs
}

// change runs f with a volume that is wanted, and calls the hook when f says that the volume has changed.
func (d *DesiredStateOfWorld) change(volumeName v1.UniqueVolumeName, f func(v *wantedVolume) bool) {
	d.mu.Lock()
	v := d.volumes[volumeName]
	changed := v != nil && f(v)
	d.mu.Unlock()
	if changed {
		d.options.changed(volumeName)
	}
}
