package journal

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// Recorded is which paths and devices are on record.
type Recorded struct {
	// Paths are those at which volumes are, or may be, and those of their sub-paths.
	Paths map[string]struct{}
	// devices are the paths of devices. labels are the names of volumes as the kernel keeps them: plugins label loop devices so.
	devices, labels map[string]struct{}
}

// newRecorded returns one that is about to take in n records.
func newRecorded(n int) *Recorded {
	return &Recorded{Paths: make(map[string]struct{}, 3*n), devices: make(map[string]struct{}), labels: make(map[string]struct{}, n)}
}

// add enters what a record names. A nil Recorded takes nothing in.
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

// Accounts reports whether a device is one on record. One that may have the label of a volume on record counts as that one's, so
// that it is left alone.
func (r *Recorded) Accounts(d loop.Device) bool {
	_, byPath := r.devices[d.Path]
	_, byLabel := r.labels[d.Label]
	return byPath || byLabel
}

// Recorded returns what is on record now.
func (j *Journal) Recorded() *Recorded {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.addAll(newRecorded(len(j.entries)))
}

// addAll enters all records. Journal.mu must be held.
func (j *Journal) addAll(r *Recorded) *Recorded {
	for _, e := range j.entries {
		r.add(e.record)
	}
	return r
}

// EndStart returns what has been on record at any time since the start, also when it was torn down meanwhile, and ends that: what
// was on record is no orphan.
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

// Accounts reports whether a device is one on record, or may be.
func (j *Journal) Accounts(d loop.Device) bool { return j.Recorded().Accounts(d) }

// IsRecorded reports whether a path, or one beneath it, is on record.
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

// Attached returns the volumes of which an attachment is on record.
func (j *Journal) Attached() []Found {
	j.mu.Lock()
	defer j.mu.Unlock()
	var attached []Found
	for _, e := range j.entries {
		if e.record.Attachment == nil {
			continue
		}
		if spec, err := e.record.spec(); err == nil { // It was checked when it was read.
			attached = append(attached, Found{Record: e.record, Spec: spec})
		}
	}
	return attached
}

// Hold lets no intent for a volume be recorded until release.
func (j *Journal) Hold(ctx context.Context, name v1.UniqueVolumeName) (release func(), ok bool) {
	return j.turns.Take(ctx.Done(), name)
}
