package bind

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// bindAtOnce does the work of Bind in one transaction: one write to the store instead of four, and no reader sees half
// of it. It fails if claim or volume has changed since it was read.
func (b *Binder) bindAtOnce(ctx context.Context, s store.Transactor, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	var t store.Transaction
	volume, bound := boundPair(claim, pv)
	if volume != pv {
		t.Writes = append(t.Writes, store.ToUpdate(volume))
	}
	if bound != claim {
		t.Writes = append(t.Writes, store.ToUpdate(bound))
	} else if !objects.OwnedBy(pv, claim) {
		t.Conditions = append(t.Conditions, unchanged(claim))
	}
	if len(t.Writes) > 0 {
		written, err := s.Commit(ctx, t)
		if err != nil {
			return fmt.Errorf("bind claim %q to volume %q: %w", store.NameOf(claim), pv.Name, err)
		}
		b.putAll(written)
	}
	return nil
}

// unchanged is the condition that a claim has not changed since it was read.
func unchanged(claim *v1.PersistentVolumeClaim) store.ObjectCondition {
	return store.ObjectCondition{
		Key:           store.Key{Kind: store.PersistentVolumeClaims, Namespace: claim.Namespace, Name: claim.Name},
		Preconditions: store.Preconditions{UID: claim.UID, ResourceVersion: claim.ResourceVersion},
	}
}

// CreateBound creates the object of a claim's new volume, bound to the claim. It returns false if the object was not,
// or may not have been, created: the caller then creates and binds the volume in two steps, which finds out.
func (b *Binder) CreateBound(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	together, ok := b.store.(store.Transactor)
	if !ok || objects.IsUnfilled(pv) {
		return false
	}
	volume, bound := boundPair(claim, pv)
	written, err := together.Commit(ctx, store.Transaction{Writes: []store.Write{store.ToCreate(volume), store.ToUpdate(bound)}})
	if err != nil {
		return false
	}
	b.putAll(written)
	return true
}

// putAll adds written claims and volumes to the mirrors.
func (b *Binder) putAll(written []runtime.Object) {
	for _, obj := range written {
		switch obj := obj.(type) {
		case *v1.PersistentVolume:
			b.Put(obj)
		case *v1.PersistentVolumeClaim:
			b.claims.Put(obj)
		}
	}
}
