package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// This file holds the changes of a volume that come from elsewhere than its pods: the node's status, the claim, the plugin.

// MarkVolumesReportedInUse says which volumes the node's status lists as in use; all others are not listed. A volume that
// comes back after its last pod has left is not listed before the next call: that list may be older than its return.
func (d *DesiredStateOfWorld) MarkVolumesReportedInUse(reported []v1.UniqueVolumeName) {
	d.mu.Lock()
	gone := make(map[*wantedVolume]struct{}, d.reported.count)
	for v := range d.reported.all {
		gone[v] = struct{}{}
	}
	var changed []*wantedVolume
	for _, name := range reported {
		v := d.volumes[name]
		if v == nil {
			continue
		}
		delete(gone, v)
		if !v.ofReported.taken {
			d.reported.join(&v.ofReported)
			changed = append(changed, v)
		}
	}
	for v := range gone {
		d.reported.leave(&v.ofReported)
		changed = append(changed, v)
	}
	d.tell(changed)
}

// tell replaces the rows of volumes that have changed, gives up the lock, and tells of them, sorted.
func (d *DesiredStateOfWorld) tell(changed []*wantedVolume) {
	names := make([]v1.UniqueVolumeName, 0, len(changed))
	for _, v := range changed {
		v.refresh()
		names = append(names, v.name)
	}
	d.mu.Unlock()
	slices.Sort(names)
	d.options.changed(names...)
}

// MarkVolumeAttachability says whether the volume must be attached, when that has changed while pods want it.
func (d *DesiredStateOfWorld) MarkVolumeAttachability(volumeName v1.UniqueVolumeName, attachable bool) {
	d.change(volumeName, func(v *wantedVolume) bool {
		facts := v.plugin
		facts.attachable = attachable
		return d.setFacts(v, facts)
	})
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
	for _, w := range d.ofPlugin(pluginName) {
		facts, err := factsOf(d.plugins, w.VolumeSpec, w.VolumeName)
		if err != nil {
			continue
		}
		d.change(w.VolumeName, func(v *wantedVolume) bool { return d.setFacts(v, facts) })
	}
}

// ofPlugin returns one row of each volume of a plugin.
func (d *DesiredStateOfWorld) ofPlugin(pluginName string) []*want {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var rows []*want
	for v := range d.byPlugin[pluginName].all {
		rows = append(rows, v.pods.first.member.row.Load())
	}
	return rows
}

// change runs f with a volume that is wanted, and tells of it when f says that it has changed.
func (d *DesiredStateOfWorld) change(volumeName v1.UniqueVolumeName, f func(v *wantedVolume) bool) {
	d.mu.Lock()
	v := d.volumes[volumeName]
	if v == nil || !f(v) {
		d.mu.Unlock()
		return
	}
	d.tell([]*wantedVolume{v})
}
