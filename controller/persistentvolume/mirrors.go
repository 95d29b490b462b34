package persistentvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// mirrors holds the mirrors of the store and their indexes.
type mirrors struct {
	store store.Store

	claims      *store.Mirror[*v1.PersistentVolumeClaim]
	volumes     *store.Mirror[*v1.PersistentVolume]
	classes     *store.Mirror[*storagev1.StorageClass]
	pods        *store.Mirror[*v1.Pod]
	attachments *store.Mirror[*storagev1.VolumeAttachment]
	// attributes mirrors VolumeAttributesClasses. A store may not have this kind: nothing waits for its first list.
	attributes *store.Mirror[*storagev1.VolumeAttributesClass]
	// volumesOf are the volumes that name a claim, podsOf the pods that refer to a claim, by its name.
	volumesOf *store.Index[*v1.PersistentVolume, types.NamespacedName]
	podsOf    *store.Index[*v1.Pod, types.NamespacedName]
	// volumesWith are the volumes that name a storage, volumesIn those that name it or a directory in it.
	volumesWith, volumesIn *store.Index[*v1.PersistentVolume, string]
	// claimsNaming are the claims that name a volume, attachmentsOf the attachments of a volume, by its name.
	claimsNaming  *store.Index[*v1.PersistentVolumeClaim, string]
	attachmentsOf *store.Index[*storagev1.VolumeAttachment, string]
	// restoring are the claims without a volume that name a snapshot as their data source, by its name.
	restoring *store.Index[*v1.PersistentVolumeClaim, types.NamespacedName]
	// copying are the claims without a volume that name another claim as their data source, by its name.
	copying *store.Index[*v1.PersistentVolumeClaim, types.NamespacedName]
}

func newMirrors(s store.Store, options store.MirrorOptions) *mirrors {
	m := &mirrors{
		store:       s,
		claims:      store.NewMirror[*v1.PersistentVolumeClaim](s, options),
		volumes:     store.NewMirror[*v1.PersistentVolume](s, options),
		classes:     store.NewMirror[*storagev1.StorageClass](s, options),
		pods:        store.NewMirror[*v1.Pod](s, options),
		attachments: store.NewMirror[*storagev1.VolumeAttachment](s, options),
		attributes:  store.NewMirror[*storagev1.VolumeAttributesClass](s, options),
	}
	m.volumesOf = store.NewIndex(m.volumes, func(pv *v1.PersistentVolume) []types.NamespacedName {
		if pv.Spec.ClaimRef == nil {
			return nil
		}
		return []types.NamespacedName{objects.ClaimNameOf(pv)}
	})
	m.volumesWith = store.NewIndex(m.volumes, func(pv *v1.PersistentVolume) []string {
		if storage := objects.StorageOf(pv); storage != "" {
			return []string{storage}
		}
		return nil
	})
	m.volumesIn = store.NewIndex(m.volumes, objects.StoragesAround)
	m.podsOf = store.NewIndex(m.pods, volume.ClaimsOfPod)
	m.claimsNaming = store.NewIndex(m.claims, func(claim *v1.PersistentVolumeClaim) []string { return []string{claim.Spec.VolumeName} })
	m.attachmentsOf = store.NewIndex(m.attachments, func(at *storagev1.VolumeAttachment) []string {
		if at.Spec.Source.PersistentVolumeName == nil {
			return nil
		}
		return []string{*at.Spec.Source.PersistentVolumeName}
	})
	m.restoring = store.NewIndex(m.claims, func(claim *v1.PersistentVolumeClaim) []types.NamespacedName {
		snapshot, named := storage.SnapshotOf(claim)
		if !named || claim.Spec.VolumeName != "" {
			return nil
		}
		return []types.NamespacedName{snapshot}
	})
	m.copying = store.NewIndex(m.claims, func(claim *v1.PersistentVolumeClaim) []types.NamespacedName {
		source := objects.ClaimToCopy(claim)
		if source == "" || claim.Spec.VolumeName != "" {
			return nil
		}
		return []types.NamespacedName{{Namespace: claim.Namespace, Name: source}}
	})
	return m
}

// volume returns the mirror's version of a volume, and false if it is gone.
func (s *mirrors) volume(name string) (*v1.PersistentVolume, bool) {
	return s.volumes.Get(objects.Named(name))
}

// class returns the class that a claim names, nil if it does not exist. A class that no event has reported yet is read from
// the store: it may have been created together with the claim.
func (s *mirrors) class(ctx context.Context, claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := objects.ClassOf(claim)
	if name == "" {
		return nil, nil
	}
	if class, there := s.classes.Get(objects.Named(name)); there {
		return class, nil
	}
	class, err := store.Get[*storagev1.StorageClass](ctx, s.store, "", name)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("storage class %q of claim %q: %w", name, store.NameOf(claim), err)
	}
	return class, nil
}

// synced waits until each kind was listed once. It returns false if ctx ends before.
func (s *mirrors) synced(ctx context.Context) bool {
	return s.classes.WaitSynced(ctx) && s.volumes.WaitSynced(ctx) && s.claims.WaitSynced(ctx) &&
		s.pods.WaitSynced(ctx) && s.attachments.WaitSynced(ctx)
}
