package snapshot

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Snapshot returns the snapshot of the VolumeSnapshot of that name in the namespace of claim, and the name of the plugin that has it. It
// has a persistentvolume.Controller restore volumes: give the Controller to its Options.Snapshots. The error matches [store.ErrNotFound]
// if there is no such snapshot or it is being deleted, volume.ErrTransient if it is not ready to use, and volume.ErrInfeasible if the
// claim asks for another volume mode. It reads the store.
func (c *Controller) Snapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, name string) (volume.Snapshot, string, error) {
	snap, err := store.Get[*snapshotv1.VolumeSnapshot](ctx, c.store, claim.Namespace, name)
	if err != nil {
		return volume.Snapshot{}, "", err
	}
	// Nothing is begun any more. What may have been begun is finished: userOf keeps the snapshot for it.
	if isBeingDeleted(snap) && !has(claim, objects.FinalizerProvisioning) {
		return volume.Snapshot{}, "", fmt.Errorf(
			"snapshot %q is being deleted, and no volume is begun from it any more: make the claim anew from another: %w", name, store.ErrNotFound)
	}
	if boundTo(snap) == "" || isUnfinished(snap) {
		return volume.Snapshot{}, "", volume.Transient(fmt.Errorf("snapshot %q: %w", name, errNotReady))
	}
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", boundTo(snap))
	if err != nil {
		return volume.Snapshot{}, "", err
	}
	plugin := c.plugins.served(content.Spec.Driver)
	switch {
	case !isBoundTo(content.Spec.VolumeSnapshotRef, snap):
		return volume.Snapshot{}, "", fmt.Errorf("content %q is not that of snapshot %q: %w", content.Name, name, store.ErrNotFound)
	case !isReady(content):
		return volume.Snapshot{}, "", volume.Transient(fmt.Errorf("content %q: %w", content.Name, errNotReady))
	case plugin == "":
		return volume.Snapshot{}, "", fmt.Errorf("driver %q of snapshot %q is that of no plugin: %w", content.Spec.Driver, name, volume.ErrInfeasible)
	}
	if mode := content.Spec.SourceVolumeMode; mode != nil && *mode != *modeOf(claim.Spec.VolumeMode) && content.Annotations[AnnAllowModeChange] != "true" {
		return volume.Snapshot{}, "", fmt.Errorf("snapshot %q is of a volume of mode %q: ask for that mode, or set annotation %q of content %q to \"true\": %w",
			name, *mode, AnnAllowModeChange, content.Name, volume.ErrInfeasible)
	}
	return volume.Snapshot{
		Handle: handleOf(content), SourceVolume: deref(content.Spec.Source.VolumeHandle), GroupHandle: deref(content.Status.VolumeGroupSnapshotHandle),
		CreationTime: timeOf(content.Status.CreationTime), ReadyToUse: true, RestoreSize: deref(content.Status.RestoreSize),
	}, plugin, nil
}

// WatchSnapshots calls changed with the name of each VolumeSnapshot that is or becomes ready to use, and of each that is deleted, until
// ctx ends. It wakes the claims that wait in a persistentvolume.Controller, which finds it by itself. It follows the store whether
// Run was called or not.
func (c *Controller) WatchSnapshots(ctx context.Context, changed func(snapshot types.NamespacedName)) {
	store.Follow(ctx, c.store, readiness{changed}, c.options.mirrors())
}

// readiness reports the snapshots that are ready to use, or gone.
type readiness struct {
	changed func(snapshot types.NamespacedName)
}

// Listed implements store.Follower.
func (r readiness) Listed(snapshots []*snapshotv1.VolumeSnapshot) {
	for _, snap := range snapshots {
		r.Changed(store.Modified, snap)
	}
}

// Changed implements store.Follower.
func (r readiness) Changed(event store.EventType, snap *snapshotv1.VolumeSnapshot) {
	if event == store.Deleted || !isUnfinished(snap) {
		r.changed(store.NameOf(snap))
	}
}
