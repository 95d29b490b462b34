package main

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

// deletePods deletes the objects of the pods, whose volumes are gone. As long as they are in the store they protect their claims.
func (a *agent) deletePods(ctx context.Context) error {
	for _, pod := range a.pods {
		if err := store.Delete(ctx, a.store, pod); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// deleteClaims deletes every claim and waits, for at most timeout, until the controller has deleted the volumes that
// are to go with their claims. It returns the names of those that their reclaim policy keeps.
func (a *agent) deleteClaims(ctx context.Context, timeout time.Duration) (kept []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, a.store, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if err := store.Delete(ctx, a.store, claim); err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
	err = store.WaitForNone(ctx, a.store, func(*v1.PersistentVolumeClaim) bool { return true })
	if err != nil {
		return nil, err
	}
	if err := store.WaitForNone(ctx, a.store, goesWithClaim); err != nil {
		return nil, err
	}
	volumes, _, err := store.ListOf[*v1.PersistentVolume](ctx, a.store, "")
	for _, pv := range volumes {
		if pv.Spec.ClaimRef != nil {
			kept = append(kept, pv.Name)
		}
	}
	return kept, err
}

// goesWithClaim reports whether pv was bound and is to be deleted with its claim.
func goesWithClaim(pv *v1.PersistentVolume) bool {
	bound := pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != ""
	return bound && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
}
