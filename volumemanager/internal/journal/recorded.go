package journal

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// Recorded holds the paths and devices that are on record.
type Recorded struct {
	// Paths are the paths at which volumes and their sub-paths are, or may be.
	Paths map[string]struct{}
	// devices are the paths of devices. labels are the names of volumes in the form that the kernel keeps: plugins label
	// loop devices with them.
	devices, labels map[string]struct{}
}

// newRecorded returns an empty Recorded with room for n records.
func newRecorded(n int) *Recorded {
	return &Recorded{Paths: make(map[string]struct{}, 3*n), devices: make(map[string]struct{}), labels: make(map[string]struct{}, n)}
}

// add enters the paths and devices of a record. On a nil Recorded it does nothing.
func (r *Recorded) add(v Record) {
	if r == nil {
		return
	}
	for path := range v.paths() {
		r.Paths[path] = struct{}{}
	}
	r.labels[loop.KeptLabel(string(v.Volume))] = struct{}{}
	r.labels[loop.OlderLabel(string(v.Volume))] = struct{}{}
	if v.Attachment != nil {
		r.devices[v.Attachment.DevicePath] = struct{}{}
	}
	if v.Staging != nil {
		r.devices[v.Staging.DevicePath] = struct{}{}
	}
}

// Accounts reports whether a device is on record, or may be: a device counts if its label can be that of a recorded volume.
// Such a device is left alone.
func (r *Recorded) Accounts(d loop.Device) bool {
	_, byPath := r.devices[d.Path]
	_, byLabel := r.labels[d.Label]
	return byPath || byLabel
}

// Recorded returns the paths and devices that are on record now.
func (j *Journal) Recorded() *Recorded {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.addAll(newRecorded(len(j.entries)))
}

// addAll enters all records. The caller holds Journal.mu.
func (j *Journal) addAll(r *Recorded) *Recorded {
	for _, e := range j.entries {
		r.add(e.record)
	}
	return r
}

// EndStart returns all paths and devices that were on record at any time since the start, and stops keeping the replaced
// ones. A volume that was torn down meanwhile is included, because its remains are no orphans.
func (j *Journal) EndStart() *Recorded {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := newRecorded(len(j.entries))
	if j.replaced != nil {
		maps.Copy(r.Paths, j.replaced.Paths)
		maps.Copy(r.devices, j.replaced.devices)
		maps.Copy(r.labels, j.replaced.labels)
	}
	j.replaced = nil
	return j.addAll(r)
}

// Paths returns every path on record.
func (j *Journal) Paths() map[string]struct{} { return j.Recorded().Paths }

// Accounts reports whether a device is on record, or may be; see [Recorded.Accounts].
func (j *Journal) Accounts(d loop.Device) bool { return j.Recorded().Accounts(d) }

// IsRecorded reports whether a path, or any path beneath it, is on record.
func (j *Journal) IsRecorded(path string) bool {
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

// Attached returns the volumes that have an attachment on record.
func (j *Journal) Attached() []Found {
	j.mu.Lock()
	defer j.mu.Unlock()
	var attached []Found
	for _, e := range j.entries {
		if e.record.Attachment == nil {
			continue
		}
		if spec, err := e.record.spec(); err == nil { // Load has checked the spec.
			attached = append(attached, Found{Record: e.record, Spec: spec})
		}
	}
	return attached
}

// Hold keeps intents for a volume from being recorded until the caller calls release. It returns false if ctx ends first.
func (j *Journal) Hold(ctx context.Context, name v1.UniqueVolumeName) (release func(), ok bool) {
	return j.turns.Take(ctx.Done(), name)
}
