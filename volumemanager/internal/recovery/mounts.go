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

// This file compares what is on record with the mount table, once, at the start.

// mountsFound is the mount table as it was at the start.
type mountsFound struct {
	table []mount.MountPoint
	// top says where in the table the uppermost mount at a path is.
	top map[string]int
	// byID says where a mount is.
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

// compareMounts reads the mount table and takes the mounts of the records that are there as ours. One that is gone is not
// ours any more: what it was of stays uncertain, so that it is set up or staged anew before anybody gets it, and a plain
// directory in its place is given to nobody. Where another is in its place, that is left alone.
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
	r.options.Watch.LookAtAll() // What is wrong with them is told.
	return mounts, nil
}

// recordedMount is a mount of a record.
type recordedMount struct {
	podvolume.Key

	path  string
	known journal.Mount
}

// mountsOf returns the mounts of a record: of the staging, and of each pod. Those of a block volume are the binds of its
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

// own returns the mount of a record as one of ours; nil when it is not there, or when it is not known which it was.
func (f mountsFound) own(r recordedMount) *mountwatch.Mount {
	top, mounted := f.top[r.path]
	if !mounted || !r.known.IsKnown() {
		return nil
	}
	if at, ok := f.byID[r.known.Unique]; ok && r.known.Unique != 0 && f.table[at].Path == r.path {
		return mountwatch.NewMount(r.Key, r.path, f.table[at]) // perhaps below another
	}
	if r.known.Is(f.table[top]) {
		return mountwatch.NewMount(r.Key, r.path, f.table[top])
	}
	// Ours is gone and another there: it is not to be taken for ours.
	return mountwatch.Lost(r.Key, r.path, r.known.Unique, r.known.Other)
}
