package volume

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Snapshot is the content of a volume at one moment, as storage has it. It outlives its volume.
type Snapshot struct {
	// Handle is the plugin's name for the snapshot: the snapshotHandle of a VolumeSnapshotContent, the snapshot id of CSI. It
	// has a meaning only for the plugin.
	Handle string
	// SourceVolume is the name that GetVolumeName returns for the volume: the sourceVolumeHandle, the source volume id.
	SourceVolume string
	// GroupHandle is the handle of the group with which the snapshot was made. Empty means none.
	GroupHandle string
	// CreationTime is the moment of the content, by the clock of the storage.
	CreationTime time.Time
	// ReadyToUse is true when a volume can be restored from the snapshot. Once true it stays true.
	ReadyToUse bool
	// RestoreSize is the least size in bytes of a volume that is restored from the snapshot. Zero means unknown.
	RestoreSize int64
}

// SnapshotOptions says which snapshot is to be made.
type SnapshotOptions struct {
	// Name is the name of the snapshot, the same each time the same snapshot is tried.
	Name string
	// Source is the volume. Its PersistentVolume is set. It must not be changed.
	Source *Spec
	// Parameters are those of the VolumeSnapshotClass. A key that the plugin does not know is an error.
	Parameters map[string]string
}

// SnapshottableVolumePlugin can make snapshots of its volumes, and new volumes from snapshots ([VolumeOptions].Snapshot).
// Absent, a claim whose data source is a snapshot is refused.
type SnapshottableVolumePlugin interface {
	ProvisionableVolumePlugin
	// CanSnapshot reports whether snapshots can be made of the volume of source. It is a pure test of the spec. If the volume
	// cannot be snapshotted just now, because it is in use, CreateSnapshot returns an error that matches [ErrInUse].
	CanSnapshot(source *Spec) (bool, error)
	// CreateSnapshot makes a snapshot of a volume, which may be in use. The snapshot holds all that was synced before the
	// call, and nothing that was written after its return. A second call with the same name and source returns the snapshot
	// that exists. A name that exists with another source is a [*SnapshotSourceError]. A volume that does not exist is an
	// error that matches [ErrNotFound].
	//
	// The call may return before the snapshot is ready to use, but not before the content is fixed. If the error matches
	// [ErrUncertain], the snapshot may exist: CreateSnapshot is called again with the same name, or DeleteSnapshot with its
	// handle.
	CreateSnapshot(ctx context.Context, options SnapshotOptions) (Snapshot, error)
	// GetSnapshot returns the snapshot of handle. A snapshot that does not exist is an error that matches [ErrNotFound]. An
	// error that matches [ErrUnsupported] says that the storage cannot tell: ask CreateSnapshot once more.
	GetSnapshot(ctx context.Context, handle string) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot. It must succeed if there is none, and leave alone the volume of which it was made and
	// the volumes restored from it. If a snapshot is being read, or volumes depend on it, the error may match [ErrInUse]. A
	// snapshot of a group may be refused with an error that matches [ErrInfeasible]: delete the group.
	DeleteSnapshot(ctx context.Context, handle string) error
}

// SnapshotLister is a plugin that can list the snapshots of its storage. Absent, a snapshot that no object names stays until
// an operator deletes it.
type SnapshotLister interface {
	SnapshottableVolumePlugin
	// ListSnapshots returns every snapshot that the storage has, by whomever it was made, those of groups included. An answer
	// that may be incomplete is an error.
	ListSnapshots(ctx context.Context) ([]Snapshot, error)
}

// GroupSnapshot is a set of snapshots of several volumes at one moment.
type GroupSnapshot struct {
	// Handle is the plugin's name for the group: the volumeGroupSnapshotHandle, the group snapshot id of CSI.
	Handle string
	// CreationTime is the moment of the content of all snapshots.
	CreationTime time.Time
	// ReadyToUse is true when all snapshots are.
	ReadyToUse bool
	// Snapshots are the snapshots, one for each source.
	Snapshots []Snapshot
}

// GroupSnapshotOptions says which group of snapshots is to be made.
type GroupSnapshotOptions struct {
	// Name is the name of the group, the same each time the same group is tried.
	Name string
	// Sources are the volumes, at least one, each once. They must not be changed.
	Sources []*Spec
	// Parameters are those of the VolumeGroupSnapshotClass. A key that the plugin does not know is an error.
	Parameters map[string]string
}

// GroupSnapshottableVolumePlugin can make snapshots of several volumes at one moment: a snapshot has a write only if the
// others have all that was synced before that write began.
type GroupSnapshottableVolumePlugin interface {
	SnapshottableVolumePlugin
	// CreateGroupSnapshot makes a snapshot of each source, or none. Apart from that it is CreateSnapshot: the name of a group
	// that exists with other sources, in whatever order, is a [*SnapshotSourceError].
	CreateGroupSnapshot(ctx context.Context, options GroupSnapshotOptions) (GroupSnapshot, error)
	// GetGroupSnapshot returns the group of handle. snapshots are the handles of its snapshots, which some storage has to be
	// told. Errors are those of GetSnapshot.
	GetGroupSnapshot(ctx context.Context, handle string, snapshots []string) (GroupSnapshot, error)
	// DeleteGroupSnapshot deletes a group with its snapshots, which are those of the handles snapshots. It must succeed if
	// there is no group. If snapshots names another snapshot than those of the group, nothing is deleted and the error matches
	// [ErrInvalid].
	DeleteGroupSnapshot(ctx context.Context, handle string, snapshots []string) error
}

// SnapshotSourceError says that a snapshot, or a group of snapshots, exists under a name and was made of other volumes than
// those that are asked for. Nothing was changed. It matches [ErrInfeasible].
type SnapshotSourceError struct {
	// Name is the name.
	Name string
	// Has are the names of the volumes of the existing snapshot, empty where the storage does not say. Wanted are those that were
	// asked for.
	Has, Wanted []string
}

// Error names both.
func (e *SnapshotSourceError) Error() string {
	if len(e.Has) == 0 {
		return fmt.Sprintf("snapshot %q exists, of other volumes than %q: use another name", e.Name, e.Wanted)
	}
	return fmt.Sprintf("snapshot %q exists, of volumes %q and not %q: use another name", e.Name, e.Has, e.Wanted)
}

// Unwrap returns [ErrInfeasible].
func (e *SnapshotSourceError) Unwrap() error { return ErrInfeasible }

// RestoreSizeError says that a claim asks for a volume smaller than its snapshot. Nothing was made. It matches [ErrInfeasible].
type RestoreSizeError struct {
	// Snapshot is the handle of the snapshot.
	Snapshot string
	// Requested is the size in bytes that the claim asks for, RestoreSize the least that there can be.
	Requested, RestoreSize int64
}

// Error says how much has to be asked for.
func (e *RestoreSizeError) Error() string {
	return fmt.Sprintf("snapshot %q needs a volume of %d bytes, and %d are asked for: ask for more", e.Snapshot, e.RestoreSize, e.Requested)
}

// Unwrap returns [ErrInfeasible].
func (e *RestoreSizeError) Unwrap() error { return ErrInfeasible }

// CheckRestoreSize returns a [*RestoreSizeError] if claim asks for less than the restore size of snapshot. A restore size that
// is unknown is no error.
func CheckRestoreSize(claim *v1.PersistentVolumeClaim, snapshot *Snapshot) error {
	requested, err := RequestedBytes(claim)
	if err != nil {
		return err
	}
	if requested < snapshot.RestoreSize {
		return &RestoreSizeError{Snapshot: snapshot.Handle, Requested: requested, RestoreSize: snapshot.RestoreSize}
	}
	return nil
}

// FindSnapshottablePluginBySpec returns the plugin that supports spec, if it is a [SnapshottableVolumePlugin] and its
// CanSnapshot says yes to spec. An error of CanSnapshot is returned wrapped.
func (m *VolumePluginMgr) FindSnapshottablePluginBySpec(spec *Spec) (SnapshottableVolumePlugin, error) {
	plugin, entry, err := findBySpec[SnapshottableVolumePlugin](m, spec, CapSnapshot)
	if err != nil {
		return nil, err
	}
	ok, err := entry.can("CanSnapshot", plugin.CanSnapshot, spec)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, entry.lacks(describeSpec(spec), CapSnapshot)
	}
	return plugin, nil
}

// FindSnapshottablePluginByName returns the plugin of that name, if it is a [SnapshottableVolumePlugin]. Without a spec it
// cannot ask CanSnapshot.
func (m *VolumePluginMgr) FindSnapshottablePluginByName(name string) (SnapshottableVolumePlugin, error) {
	return findByName[SnapshottableVolumePlugin](m, name, CapSnapshot)
}

// FindSnapshotListerByName returns the plugin of that name, if it is a [SnapshotLister].
func (m *VolumePluginMgr) FindSnapshotListerByName(name string) (SnapshotLister, error) {
	return findByName[SnapshotLister](m, name, CapListSnapshots)
}

// FindGroupSnapshottablePluginByName returns the plugin of that name, if it is a [GroupSnapshottableVolumePlugin].
func (m *VolumePluginMgr) FindGroupSnapshottablePluginByName(name string) (GroupSnapshottableVolumePlugin, error) {
	return findByName[GroupSnapshottableVolumePlugin](m, name, CapGroupSnapshot)
}
