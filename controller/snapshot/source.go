package snapshot

import (
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

// pluginError is what a plugin said of a volume, or that no plugin here serves it. Nothing reports that it says otherwise now: it is
// asked again after a back-off.
type pluginError struct{ error }

// Unwrap returns the cause.
func (e *pluginError) Unwrap() error { return e.error }

// retry has the object of uid looked at again after a back-off if a plugin is the cause of an error.
func retry(uid types.UID, why error) error {
	if _, said := errors.AsType[*pluginError](why); said {
		return &work.CallError{UID: uid, Err: why}
	}
	return nil
}

// sourceOfSnapshot returns the claim that a snapshot is made of, and its volume.
func (c *Controller) sourceOfSnapshot(snap *snapshotv1.VolumeSnapshot) (*v1.PersistentVolumeClaim, source, error) {
	name := types.NamespacedName{Namespace: snap.Namespace, Name: *snap.Spec.Source.PersistentVolumeClaimName}
	claim, ok := c.seen.claims.Get(name)
	if !ok {
		return nil, source{}, fmt.Errorf("claim %q does not exist: create it, or name another", name)
	}
	from, err := c.sourceOfClaim(claim)
	return claim, from, err
}

// sourceOfClaim returns the volume of a claim from which a snapshot may be made.
func (c *Controller) sourceOfClaim(claim *v1.PersistentVolumeClaim) (source, error) {
	name := store.NameOf(claim)
	if dies(claim) {
		return source{}, fmt.Errorf("claim %q is being deleted: make the snapshot of another claim", name)
	}
	if claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound {
		return source{}, fmt.Errorf("claim %q is not bound to a volume yet", name)
	}
	pv, ok := c.seen.volumes.Get(objects.Named(claim.Spec.VolumeName))
	if !ok || !objects.OwnedBy(pv, claim) {
		return source{}, fmt.Errorf("volume %q is not there, or not that of claim %q", claim.Spec.VolumeName, name)
	}
	from, err := c.plugins.sourceOf(pv)
	if err != nil {
		return source{}, &pluginError{err}
	}
	return from, nil
}

// classOf returns the class that a snapshot names, and the default class for the driver of its volume if it names none.
func (c *Controller) classOf(snap *snapshotv1.VolumeSnapshot, pluginName string) (*snapshotv1.VolumeSnapshotClass, error) {
	if name := snap.Spec.VolumeSnapshotClassName; name != nil {
		class, ok := c.seen.classes.Get(objects.Named(*name))
		if !ok {
			return nil, fmt.Errorf("snapshot class %q does not exist: create it, or name another", *name)
		}
		if !volume.IsDriverOfPlugin(class.Driver, pluginName) {
			return nil, fmt.Errorf("snapshot class %q is for driver %q, and the volume is one of plugin %q: name a class of that plugin",
				*name, class.Driver, pluginName)
		}
		return class, nil
	}
	var found []*snapshotv1.VolumeSnapshotClass
	for _, class := range c.seen.classes.All() {
		if class.Annotations[AnnDefaultClass] == "true" && volume.IsDriverOfPlugin(class.Driver, pluginName) {
			found = append(found, class)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the snapshot names no class, and plugin %q has no default snapshot class: name a class", pluginName)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d snapshot classes of plugin %q are the default, %q and %q among them: name one, or unmark all others",
		len(found), pluginName, found[0].Name, found[1].Name)
}
