package journal

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/loop"
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

// Hold keeps intents for a volume from being recorded until the caller calls release. It returns false if ctx ends first.
func (j *Journal) Hold(ctx context.Context, name v1.UniqueVolumeName) (release func(), ok bool) {
	return j.locks.Take(ctx.Done(), name)
}
