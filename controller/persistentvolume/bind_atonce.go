package persistentvolume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// This file binds in one transaction, where the store has them: what are four writes without is then one round trip and one
// version of the store, and nobody ever sees half of it.

// bindAtOnce does what bind does. What has changed since it was read, be it the claim alone, makes all of it fail.
func (c *Controller) bindAtOnce(ctx context.Context, s store.Transactor, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	var t store.Transaction
	volume, bound := boundPair(claim, pv)
	if volume != pv {
		t.Writes = append(t.Writes, store.ToUpdate(volume))
	}
	if bound != claim {
		t.Writes = append(t.Writes, store.ToUpdate(bound))
	} else if !ownedBy(pv, claim) {
		t.Conditions = append(t.Conditions, unchanged(claim))
	}
	if len(t.Writes) > 0 {
		written, err := s.Commit(ctx, t)
		if err != nil {
			return fmt.Errorf("bind claim %q to volume %q: %w", store.NameOf(claim), pv.Name, err)
		}
		c.sawWritten(written)
	}
	c.served(store.NameOf(claim))
	return nil
}

// boundPair returns the claim and the volume as they are when they are bound, each itself when nothing about it changes.
func boundPair(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	pv, _ = naming(pv, claim)
	pv, _ = inPhase(pv, v1.VolumeBound, "")
	claim, _ = having(claim, pv)
	claim, _ = boundTo(claim, pv)
	return pv, claim
}

// unchanged asks that a claim is what was read.
func unchanged(claim *v1.PersistentVolumeClaim) store.Condition {
	return store.Condition{
		Key:           store.Key{Kind: store.PersistentVolumeClaims, Namespace: claim.Namespace, Name: claim.Name},
		Preconditions: store.Preconditions{UID: claim.UID, ResourceVersion: claim.ResourceVersion},
	}
}

// saveAtOnce creates the object of a volume that was made for the claim, bound to it. It reports false when it did not, or may
// not have: whoever saves and binds it then, in two steps, finds out.
func (c *Controller) saveAtOnce(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	together, ok := c.store.(store.Transactor)
	if !ok {
		return false
	}
	volume, bound := boundPair(claim, pv)
	written, err := together.Commit(ctx, store.Transaction{Writes: []store.Write{store.ToCreate(volume), store.ToUpdate(bound)}})
	if err != nil {
		return false
	}
	c.sawWritten(written)
	c.served(store.NameOf(claim))
	return true
}

// sawWritten takes over claims and volumes that were just written.
func (c *Controller) sawWritten(objects []runtime.Object) {
	for _, obj := range objects {
		switch obj := obj.(type) {
		case *v1.PersistentVolume:
			c.seen(obj)
		case *v1.PersistentVolumeClaim:
			c.claims.Put(obj)
		}
	}
}
