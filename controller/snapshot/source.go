package snapshot

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// sources finds the source volumes of snapshots.
type sources struct {
	store   store.Store
	mirrors *mirrors
	plugins *plugins
}

// pluginError is the error of a plugin for a volume, or the error that no plugin supports the volume. No event reports that this has
// changed, so the controller tries again after a back-off.
type pluginError struct{ error }

// Unwrap returns the cause.
func (e *pluginError) Unwrap() error { return e.error }

// retry returns an error that retries the object with uid after a back-off, if a plugin is the cause of why. Otherwise it returns nil.
func retry(uid types.UID, why error) error {
	if _, ok := errors.AsType[*pluginError](why); ok {
		return &work.CallError{UID: uid, Err: why}
	}
	return nil
}

// sourceOfSnapshot returns the source claim of a snapshot, and its volume.
func (c *snapshotSync) sourceOfSnapshot(snap *snapshotv1.VolumeSnapshot) (*v1.PersistentVolumeClaim, source, error) {
	name := types.NamespacedName{Namespace: snap.Namespace, Name: *snap.Spec.Source.PersistentVolumeClaimName}
	claim, ok := c.mirrors.claims.Get(name)
	if !ok {
		return nil, source{}, fmt.Errorf("claim %q does not exist: create it, or name another", name)
	}
	from, err := c.sources.ofClaim(claim)
	return claim, from, err
}

// ofClaim returns the volume of a claim from which a snapshot may be made.
func (s *sources) ofClaim(claim *v1.PersistentVolumeClaim) (source, error) {
	name := store.NameOf(claim)
	if isBeingDeleted(claim) {
		return source{}, fmt.Errorf("claim %q is being deleted: make the snapshot of another claim", name)
	}
	if claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound {
		return source{}, fmt.Errorf("claim %q is not bound to a volume yet", name)
	}
	pv, ok := s.mirrors.volumes.Get(objects.Named(claim.Spec.VolumeName))
	if !ok || !objects.OwnedBy(pv, claim) {
		return source{}, fmt.Errorf("volume %q is missing, or is not bound to claim %q", claim.Spec.VolumeName, name)
	}
	from, err := s.plugins.sourceOf(pv)
	if err != nil {
		return source{}, &pluginError{err}
	}
	return from, nil
}

// named returns the volume of the PersistentVolume with a name. It fails if that is now another volume: handle is the plugin's name of
// the volume when the snapshot was requested.
func (s *sources) named(ctx context.Context, name, handle string) (source, error) {
	pv, err := store.Get[*v1.PersistentVolume](ctx, s.store, "", name)
	if err != nil {
		return source{}, volume.Transient(fmt.Errorf("source volume %q of the snapshot: %w", name, err))
	}
	from, err := s.plugins.sourceOf(pv)
	if err != nil {
		return source{}, err
	}
	if from.handle != handle {
		return source{}, fmt.Errorf("volume %q is %q and no longer %q: another PersistentVolume has its name: %w",
			name, from.handle, handle, volume.ErrInvalid)
	}
	return from, nil
}

// classOf returns the class that a snapshot names, or the default class for the driver of its volume if it names none.
func (c *snapshotSync) classOf(snap *snapshotv1.VolumeSnapshot, pluginName string) (*snapshotv1.VolumeSnapshotClass, error) {
	return classes[*snapshotv1.VolumeSnapshotClass]{
		mirror: c.mirrors.classes, kind: "snapshot class", defaults: AnnDefaultClass,
		driver: func(class *snapshotv1.VolumeSnapshotClass) string { return class.Driver },
	}.find(snap.Spec.VolumeSnapshotClassName, pluginName)
}

// classes are the classes of snapshots, or of groups.
type classes[T store.Object] struct {
	mirror   *store.Mirror[T]
	kind     string // the name of the kind in errors
	defaults string // the annotation of a default class
	driver   func(T) string
}

// find returns the class with a name, or the default class for the driver of a plugin if name is nil.
func (c classes[T]) find(name *string, pluginName string) (none T, err error) {
	if name != nil {
		class, ok := c.mirror.Get(objects.Named(*name))
		if !ok {
			return none, fmt.Errorf("%s %q does not exist: create it, or name another", c.kind, *name)
		}
		if driver := c.driver(class); !volume.IsDriverOfPlugin(driver, pluginName) {
			return none, fmt.Errorf("%s %q is for driver %q, and the volume is one of plugin %q: name a class of that plugin",
				c.kind, *name, driver, pluginName)
		}
		return class, nil
	}
	var found []T
	for _, class := range c.mirror.All() {
		if class.GetAnnotations()[c.defaults] == "true" && volume.IsDriverOfPlugin(c.driver(class), pluginName) {
			found = append(found, class)
		}
	}
	switch len(found) {
	case 0:
		return none, fmt.Errorf("no class is named, and plugin %q has no default %s: name a class", pluginName, c.kind)
	case 1:
		return found[0], nil
	}
	return none, fmt.Errorf("plugin %q has %d classes that are the default %s, %q and %q among them: name one, or unmark all others",
		pluginName, len(found), c.kind, found[0].GetName(), found[1].GetName())
}
