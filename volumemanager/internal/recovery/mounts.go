package recovery

import (
	"context"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// This file compares the records with the mount table, once, at the start.

// mountsFound is the mount table at the start.
type mountsFound struct {
	table []mount.MountPoint
	// top holds the table's index of the uppermost mount at each path.
	top map[string]int
	// byID holds the table's index of each mount by its unique id.
	byID map[uint64]int
}

func newMountsFound(table []mount.MountPoint) mountsFound {
	f := mountsFound{table: table, top: make(map[string]int, len(table)), byID: make(map[uint64]int, len(table))}
	for i := range table {
		f.top[table[i].Path] = i
		f.byID[table[i].UniqueID] = i
	}
	return f
}

// compareMounts reads the mount table, and enters the recorded mounts that are still there as ours. A recorded mount that is
// gone is no longer ours. Its volume stays uncertain: it is set up or staged again before a pod gets it, and a plain
// directory at its path is given to no pod. If another mount is at its path, the manager leaves that mount alone.
func (r *Recovery) compareMounts(ctx context.Context, found []journal.Found) (mountsFound, error) {
	if r.options.Mounts == nil {
		return mountsFound{}, nil
	}
	table, err := r.options.Mounts.List(ctx)
	if err != nil {
		return mountsFound{}, err
	}
	mounts := newMountsFound(table)
	for _, v := range found {
		for _, recorded := range mountsOf(v) {
			if own := mounts.own(recorded); own != nil {
				r.options.Watch.Found(own)
			}
		}
	}
	r.options.Watch.CheckAll() // This reports the faults of the mounts.
	return mounts, nil
}

// recordedMount is a mount of a record.
type recordedMount struct {
	podvolume.Key

	path  string
	known journal.Mount
}

// mountsOf returns the mounts of a record: of the staging, and of each pod. For a block volume these are the binds of its
// device.
func mountsOf(v journal.Found) []recordedMount {
	r := v.Record
	mounts := make([]recordedMount, 0, 1+len(r.Pods))
	if r.Staging != nil {
		mounts = append(mounts, recordedMount{podvolume.Key{Volume: r.Volume}, r.Staging.Path, r.Staging.Mount})
	}
	for uid, p := range r.Pods {
		path := p.Path
		if r.Staging != nil && volume.IsBlock(v.Spec) {
			path = filepath.Join(r.Staging.Path, string(uid))
		}
		mounts = append(mounts, recordedMount{podvolume.Key{Volume: r.Volume, Pod: volume.UniquePodName(uid)}, path, p.Mount})
	}
	return mounts
}

// own returns a recorded mount as one of this manager's. It is nil if nothing is mounted at its path and the mount was not moved,
// or if the record does not identify the mount.
func (f mountsFound) own(r recordedMount) *mountwatch.Mount {
	top, mounted := f.top[r.path]
	at, exists := f.byID[r.known.Unique]
	exists = exists && r.known.Unique != 0
	switch {
	case exists && f.table[at].Path == r.path:
		return mountwatch.NewMount(r.Key, r.path, f.table[at]) // Another mount may cover it.
	case !r.known.IsKnown() || !mounted && !exists:
		return nil
	case mounted && r.known.Is(f.table[top]):
		return mountwatch.NewMount(r.Key, r.path, f.table[top])
	}
	// The manager's mount was moved, or is gone and another is at its path: do not take that one for the manager's.
	return mountwatch.Lost(r.Key, r.path, r.known.Unique, r.known.Other)
}
