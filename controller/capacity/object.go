package capacity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// classSegmentOf returns the pair of an object. If the object's topology is not a set of labels, its segment is one that no
// plugin has.
func classSegmentOf(object *storagev1.CSIStorageCapacity) classSegment {
	topology := object.NodeTopology
	if topology == nil || len(topology.MatchExpressions) > 0 {
		return classSegment{object.StorageClassName, "none"}
	}
	return classSegment{object.StorageClassName, segment(topology.MatchLabels).key()}
}

// objectName returns the name of the object of a pair. All processes compute the same name.
func (d *driver) objectName(p classSegment) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{d.options.ManagedBy, d.name, p.class, p.segment}, "\n")))
	return "csisc-" + hex.EncodeToString(sum[:])[:20]
}

// publish writes a capacity into the object of a pair, if the object has another one.
func (d *driver) publish(ctx context.Context, p classSegment, s *state, capacity volume.Capacity) error {
	wanted := d.objectOf(p, s.segment, capacity)
	d.setPublished(s, wanted) // The watch may report the write before the write returns.
	written, err := d.write(ctx, wanted)
	if err != nil {
		d.setPublished(s, nil)
		return err
	}
	d.setPublished(s, written)
	d.objects.Put(written)
	return nil
}

func (d *driver) setPublished(s *state, object *storagev1.CSIStorageCapacity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.published = object
}

func (d *driver) write(ctx context.Context, wanted *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error) {
	name := store.NameOf(wanted)
	existing, seen := d.objects.Get(name)
	if !seen {
		made, err := store.Create(ctx, d.store, wanted)
		if errors.Is(err, store.ErrAlreadyExists) { // The mirror is outdated: try again.
			err = fmt.Errorf("%w: %w", store.ErrConflict, err)
		}
		return made, err
	}
	if !slices.Contains(d.driversOf(existing), d.name) || classSegmentOf(existing) != classSegmentOf(wanted) {
		return nil, fmt.Errorf("object %q has this name and is of another: rename or delete it: %w", name, volume.ErrInUse)
	}
	if sameCapacity(existing, wanted) {
		return existing, nil
	}
	updated, err := store.Update(ctx, d.store, changed(existing, wanted))
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("object %q was deleted meanwhile: %w: %w", name, store.ErrConflict, err)
	}
	return updated, err
}

// objectOf returns the object of a pair. It omits unknown quantities.
func (d *driver) objectOf(p classSegment, s segment, capacity volume.Capacity) *storagev1.CSIStorageCapacity {
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.options.Namespace, Name: d.objectName(p),
			Labels: map[string]string{LabelManagedBy: d.options.ManagedBy, LabelDriverName: d.name},
		},
		NodeTopology: &metav1.LabelSelector{MatchLabels: cloneOf(s)}, StorageClassName: p.class,
		Capacity: copyOf(capacity.Available), MaximumVolumeSize: copyOf(capacity.MaximumVolumeSize),
	}
	if d.options.Owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*d.options.Owner.DeepCopy()}
	}
	return object
}

// sameCapacity reports whether object has the content and the owners of wanted.
func sameCapacity(object, wanted *storagev1.CSIStorageCapacity) bool {
	return sameQuantity(object.Capacity, wanted.Capacity) && sameQuantity(object.MaximumVolumeSize, wanted.MaximumVolumeSize) &&
		!slices.ContainsFunc(wanted.OwnerReferences, func(o metav1.OwnerReference) bool { return !owns(object, o.UID) })
}

func owns(object *storagev1.CSIStorageCapacity, uid types.UID) bool {
	return slices.ContainsFunc(object.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == uid })
}

// changed returns a copy of existing with the content of wanted.
func changed(existing, wanted *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	object := existing.DeepCopy()
	object.Capacity, object.MaximumVolumeSize = wanted.Capacity, wanted.MaximumVolumeSize
	for _, owner := range wanted.OwnerReferences {
		if !owns(object, owner.UID) {
			object.OwnerReferences = append(object.OwnerReferences, owner)
		}
	}
	return object
}

func sameQuantity(a, b *resource.Quantity) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Cmp(*b) == 0
}

func copyOf(q *resource.Quantity) *resource.Quantity {
	if q == nil {
		return nil
	}
	c := q.DeepCopy()
	return &c
}

func cloneOf(s segment) map[string]string { return maps.Clone(map[string]string(s)) }
