package volumemanager

import (
	"slices"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// This file tells which paths and devices are on record.

// recordedPaths returns every path on record, as it is now.
func (j *journal) recordedPaths() map[string]struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	paths := make(map[string]struct{}, len(j.entries))
	for _, e := range j.entries {
		for path := range e.record.paths() {
			paths[path] = struct{}{}
		}
	}
	return paths
}

// isRecorded reports whether a path, or one beneath it, is on record.
func (j *journal) isRecorded(path string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.entries {
		for recorded := range e.record.paths() {
			if paths.IsAtOrBeneath(recorded, path) {
				return true
			}
		}
	}
	return false
}

// recordedDevices are the devices on record: by their paths, and by the names of their volumes, with which plugins label
// loop devices.
type recordedDevices struct {
	paths  map[string]struct{}
	labels map[string]struct{} // as the kernel keeps them
}

func (j *journal) recordedDevices() recordedDevices {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := newRecordedDevices()
	for _, e := range j.entries {
		r.add(e.record)
	}
	return r
}

func newRecordedDevices() recordedDevices {
	return recordedDevices{paths: make(map[string]struct{}), labels: make(map[string]struct{})}
}

func (r recordedDevices) add(v volumeRecord) {
	r.labels[loop.KeptLabel(string(v.Volume))] = struct{}{}
	r.labels[loop.OlderLabel(string(v.Volume))] = struct{}{}
	if v.Attachment != nil {
		r.paths[v.Attachment.DevicePath] = struct{}{}
	}
	if v.Staging != nil {
		r.paths[v.Staging.DevicePath] = struct{}{}
	}
}

// account for a device. One that may have the label of a volume on record counts as that one's, so that it is left alone.
func (r recordedDevices) account(d loop.Device) bool {
	_, byPath := r.paths[d.Path]
	_, byLabel := r.labels[d.Label]
	return byPath || byLabel
}

// withoutRecordedDevices leaves out the devices of volumes that have come on record.
func withoutRecordedDevices(found []orphans.Orphan, recorded recordedDevices) []orphans.Orphan {
	return slices.DeleteFunc(found, func(o orphans.Orphan) bool { return o.BackingFile != "" && recorded.account(o.Device) })
}
