package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// ErrSourceGone says that the source of a new volume is missing: the claim to copy, its volume, or the snapshot.
var ErrSourceGone = errors.New("the source of the copy is gone")

// SnapshotGroup and SnapshotKind are the API group and the kind of a snapshot as a data source.
const (
	SnapshotGroup = "snapshot.storage.k8s.io"
	SnapshotKind  = "VolumeSnapshot"
)

// Snapshots finds the snapshots that claims name as their data source.
type Snapshots interface {
	// Snapshot returns the snapshot of a VolumeSnapshot in the claim's namespace, and the name of its plugin. If there
	// is none, the error matches [store.ErrNotFound]; if it is not ready to use yet, volume.ErrTransient. A snapshot
	// that is being deleted counts as missing, unless a provisioning for claim may have begun. Snapshot must return
	// when ctx ends. It must not change claim. It may be called from several goroutines at once.
	Snapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, name string) (snapshot volume.Snapshot, plugin string, err error)
}

// SnapshotWatcher is an optional interface of [Snapshots]. Without it a claim that waits for a snapshot is looked at again after a
// back-off.
type SnapshotWatcher interface {
	// WatchSnapshots calls changed with the name of each VolumeSnapshot that is or becomes ready to use, and of each that is deleted,
	// until ctx ends. It may call it more often. changed does not block.
	WatchSnapshots(ctx context.Context, changed func(snapshot types.NamespacedName))
}

// source is the data source of a claim. Its zero value is none.
type source struct {
	claim, snapshot string
	other           *v1.TypedObjectReference // of a kind for a populator
}

// sourceNamed returns the data source of a claim.
func sourceNamed(claim *v1.PersistentVolumeClaim) (source, error) {
	local, ref := claim.Spec.DataSource, claim.Spec.DataSourceRef
	if local == nil && ref == nil {
		return source{}, nil
	}
	if ref == nil {
		ref = &v1.TypedObjectReference{APIGroup: local.APIGroup, Kind: local.Kind, Name: local.Name}
	}
	switch {
	case local != nil && (objects.Deref(local.APIGroup) != objects.Deref(ref.APIGroup) || local.Kind != ref.Kind || local.Name != ref.Name):
		return source{}, fmt.Errorf("dataSource and dataSourceRef name different things: remove one: %w", volume.ErrInvalid)
	case ref.Namespace != nil && *ref.Namespace != claim.Namespace:
		return source{}, fmt.Errorf("the data source is %s %q of namespace %q: only one of the claim's own namespace %q can be copied: %w",
			ref.Kind, ref.Name, *ref.Namespace, claim.Namespace, volume.ErrInfeasible)
	case isSnapshot(ref):
		return source{snapshot: ref.Name}, nil
	case !isClaim(ref):
		return source{other: ref}, nil
	case ref.Name == claim.Name:
		return source{}, fmt.Errorf("the claim is its own data source: name another claim: %w", volume.ErrInvalid)
	}
	return source{claim: ref.Name}, nil
}

// OfAnotherKind returns the data source of a claim if it is neither a claim nor a snapshot, and nil otherwise. An error
// says that no volume can be created for the claim.
func OfAnotherKind(claim *v1.PersistentVolumeClaim) (*v1.TypedObjectReference, error) {
	named, err := sourceNamed(claim)
	return named.other, err
}

// SnapshotOf returns the name of the VolumeSnapshot from which a claim is to be restored, and false if it is to be from none.
func SnapshotOf(claim *v1.PersistentVolumeClaim) (types.NamespacedName, bool) {
	named, err := sourceNamed(claim)
	return types.NamespacedName{Namespace: claim.Namespace, Name: named.snapshot}, err == nil && named.snapshot != ""
}

// Describe names a data source, for annotations and messages: Archive.example.com/name.
func Describe(ref *v1.TypedObjectReference) string {
	return KindOf(ref).String() + "/" + ref.Name
}

// KindOf returns the group and kind of a data source.
func KindOf(ref *v1.TypedObjectReference) schema.GroupKind {
	return schema.GroupKind{Group: objects.Deref(ref.APIGroup), Kind: ref.Kind}
}

func isClaim(ref *v1.TypedObjectReference) bool {
	return ref.Kind == store.PersistentVolumeClaims.Kind && objects.Deref(ref.APIGroup) == ""
}

func isSnapshot(ref *v1.TypedObjectReference) bool {
	return ref.Kind == SnapshotKind && objects.Deref(ref.APIGroup) == SnapshotGroup
}

// fill sets the content of a claim's new volume: another claim's volume, a snapshot, a populator's source, or none.
func (p *Plugins) fill(ctx context.Context, claim *v1.PersistentVolumeClaim, job *Job) error {
	named, err := sourceNamed(claim)
	switch {
	case err != nil:
		return err
	case named.other != nil:
		job.populate = Describe(named.other)
	case named.snapshot != "":
		job.snapshot, err = p.snapshotOf(ctx, claim, named.snapshot, job.plugin)
	case named.claim != "":
		job.source, err = p.sourceOf(ctx, claim, named.claim, job.plugin)
	}
	return err
}

// snapshotOf returns the snapshot that plugin must restore.
func (p *Plugins) snapshotOf(
	ctx context.Context, claim *v1.PersistentVolumeClaim, name string, plugin volume.ProvisionableVolumePlugin,
) (*volume.Snapshot, error) {
	if p.snapshots == nil {
		return nil, fmt.Errorf("the data source is VolumeSnapshot %q, and this controller knows no snapshots: give it Options.Snapshots: %w",
			name, volume.ErrInfeasible)
	}
	snapshot, owner, err := p.snapshots.Snapshot(ctx, claim, name)
	if err != nil {
		return nil, goneOr(fmt.Errorf("snapshot %q, which is to be restored: %w", name, err))
	}
	if owner != plugin.GetPluginName() {
		return nil, fmt.Errorf("snapshot %q is one of plugin %q, and the storage class one of plugin %q, which restores its own only: %w",
			name, owner, plugin.GetPluginName(), volume.ErrInfeasible)
	}
	if _, err := p.plugins.FindSnapshottablePluginByName(owner); err != nil {
		return nil, fmt.Errorf("snapshot %q cannot be restored: %w: %w", name, volume.ErrInfeasible, err)
	}
	return &snapshot, nil
}

// sourceOf returns the volume of the named claim, which plugin must copy for claim. If that claim is not bound yet, the
// error is transient. If that claim is being deleted, the source is gone, unless a volume for
// claim may have been begun: package inuse keeps the source for it.
func (p *Plugins) sourceOf(
	ctx context.Context, claim *v1.PersistentVolumeClaim, name string, plugin volume.ProvisionableVolumePlugin,
) (*v1.PersistentVolume, error) {
	source, err := store.Get[*v1.PersistentVolumeClaim](ctx, p.store, claim.Namespace, name)
	if err != nil {
		return nil, goneOr(fmt.Errorf("claim %q, which is to be copied: %w", name, err))
	}
	if source.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) {
		return nil, goneOr(fmt.Errorf("claim %q, which is to be copied, is being deleted: %w", name, store.ErrNotFound))
	}
	if source.Spec.VolumeName == "" || source.Status.Phase != v1.ClaimBound {
		return nil, volume.Transient(fmt.Errorf("claim %q, which is to be copied, is not bound to a volume yet", name))
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, p.store, "", source.Spec.VolumeName)
	if err != nil {
		return nil, goneOr(fmt.Errorf("volume %q of claim %q, which is to be copied: %w", source.Spec.VolumeName, name, err))
	}
	if !objects.OwnedBy(pv, source) {
		return nil, fmt.Errorf("volume %q is not that of claim %q, which is to be copied: %w", pv.Name, name, volume.ErrInvalid)
	}
	return pv, p.canCopy(pv, plugin)
}

// goneOr makes the error of a missing source match [ErrSourceGone].
func goneOr(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return volume.Transient(fmt.Errorf("%w: %w", ErrSourceGone, err))
	}
	return volume.Transient(err)
}

// canCopy returns an error if the plugin cannot copy the volume.
func (p *Plugins) canCopy(pv *v1.PersistentVolume, plugin volume.ProvisionableVolumePlugin) error {
	copies, err := p.plugins.FindCloneablePluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
	switch {
	case errors.Is(err, volume.ErrNoPlugin):
		return fmt.Errorf("volume %q cannot be copied: %w: %w", pv.Name, volume.ErrInfeasible, err)
	case err != nil:
		return err
	case copies.GetPluginName() != plugin.GetPluginName():
		return fmt.Errorf("volume %q is one of plugin %q, and the storage class one of plugin %q, which copies its own only: %w",
			pv.Name, copies.GetPluginName(), plugin.GetPluginName(), volume.ErrInfeasible)
	}
	return nil
}
