package journal

import (
	"context"
	"errors"
	"strings"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
)

// Table is the mount table.
type Table interface {
	// List returns all mounts.
	List(ctx context.Context) ([]mount.MountPoint, error)
	// Lookup returns the uppermost mount at path. The error matches mount.ErrNotMounted when there is none. It never waits for the
	// filesystem there.
	Lookup(ctx context.Context, path string) (mount.MountPoint, error)
}

// Mount tells the mount of a record from another one at the same path. The zero value says that there was none, or
// that it is not known.
type Mount struct {
	// Unique is the id that the kernel gives to no other mount until the next boot.
	Unique uint64 `json:"unique,omitempty"`
	// Other is what it is known by where the kernel has no such ids.
	Other *mount.Identity `json:"other,omitempty"`
}

// MountOf returns by what a mount is known that is on the mount table.
func MountOf(m mount.MountPoint) Mount { return MountOfIdentity(m.Identity()) }

// MountOfIdentity returns by what a mount with an identity is known.
func MountOfIdentity(id mount.Identity) Mount {
	if id.UniqueID != 0 {
		return Mount{Unique: id.UniqueID}
	}
	id.Flags = "" // Another process may change them: it stays the same mount.
	return Mount{Other: &id}
}

// identity returns what the mount is known by; the zero Identity when nothing is known.
func (r Mount) identity() mount.Identity {
	if r.Other != nil {
		return *r.Other
	}
	return mount.Identity{UniqueID: r.Unique}
}

// IsKnown reports whether it is known which mount it is.
func (r Mount) IsKnown() bool { return r.identity() != mount.Identity{} }

// Is reports whether m is the recorded mount. If the record does not identify the mount, every mount may be it.
func (r Mount) Is(m mount.MountPoint) bool {
	if r.Unique != 0 {
		return r.Unique == m.UniqueID
	}
	return r.identity().Is(m)
}

// seen enters into r what an operation has left at its path, and reports whether that changed r. What cannot be looked at is
// not known.
func (j *Journal) seen(ctx context.Context, r *Record, intent operationexecutor.Intent, end operationexecutor.IntentEnd) bool {
	if j.options.Mounts == nil || undoes(intent.Kind) {
		return false // What a teardown has left is what was there, or nothing.
	}
	path := mountwatch.PathOf(intent)
	if path == "" {
		return false
	}
	known := r.mountOf(intent)
	var now seenMount
	if end == operationexecutor.IntentDone {
		now = j.mountAt(ctx, path)
	}
	changed := now.identity() != known.identity()
	if changed {
		r.setMount(intent, now.Mount)
	}
	return r.settle(intent, j.settled(r, intent, now)) || changed
}

// lost removes from r the identity of a mount that is about to be made again, if nothing is mounted there any more. It
// reports whether that changed r. After a crash, the next manager would otherwise take the new mount for a foreign one.
func (j *Journal) lost(ctx context.Context, r *Record, intent operationexecutor.Intent) bool {
	path := mountwatch.PathOf(intent)
	if j.options.Mounts == nil || undoes(intent.Kind) || path == "" {
		return false
	}
	if !r.mountOf(intent).IsKnown() {
		return false
	}
	if _, err := j.options.Mounts.Lookup(ctx, path); !errors.Is(err, mount.ErrNotMounted) {
		return false // It is still there, or the lookup failed.
	}
	r.setMount(intent, Mount{})
	return true
}

// mountAt returns by what the mount at a path is known that an operation has made.
func (j *Journal) mountAt(ctx context.Context, path string) seenMount {
	if j.options.Learned != nil {
		return seenOwn(j.options.Learned(path))
	}
	m, err := j.options.Mounts.Lookup(ctx, path)
	if err != nil {
		return seenMount{}
	}
	return seenMountOf(m)
}

// seenMount is what goes on record of a mount. The zero value says that there is none, or that it is not known.
type seenMount struct {
	Mount

	// options are those of the mount, joined.
	options string
	// readOnly says that its filesystem is read-only.
	readOnly bool
}

func seenMountOf(m mount.MountPoint) seenMount {
	return seenMount{Mount: MountOf(m), options: strings.Join(m.Options, ","), readOnly: mountwatch.IsReadOnly(m)}
}

// seenOwn returns what goes on record of a mount of ours, which may be nil.
func seenOwn(own *mountwatch.Mount) seenMount {
	if own == nil {
		return seenMount{}
	}
	return seenMount{Mount: MountOfIdentity(own.Expect()), options: own.Options(), readOnly: own.IsReadOnly()}
}

// mountOf returns what is on record of the mount of what an intent is about.
func (r Record) mountOf(intent operationexecutor.Intent) Mount {
	if partOf(intent) == partStaging && r.Staging != nil {
		return r.Staging.Mount
	}
	if setUp := r.Pods[intent.PodUID]; setUp != nil {
		return setUp.Mount
	}
	return Mount{}
}

func (r *Record) setMount(intent operationexecutor.Intent, m Mount) {
	if partOf(intent) == partStaging && r.Staging != nil {
		staging := *r.Staging
		staging.Mount = m
		r.Staging = &staging
		return
	}
	if setUp := r.Pods[intent.PodUID]; setUp != nil {
		next := *setUp
		next.Mount, next.Settled = m, nil
		r.Pods[intent.PodUID] = &next
	}
}

// undoes reports whether an operation takes away what others make.
func undoes(kind operationexecutor.OperationKind) bool {
	switch kind {
	case operationexecutor.OpUnmount, operationexecutor.OpUnmap, operationexecutor.OpUnmountDevice, operationexecutor.OpUnmapDevice, operationexecutor.OpDetach:
		return true
	default:
		return false
	}
}
