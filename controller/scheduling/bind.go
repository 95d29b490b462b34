package scheduling

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// annPlacing marks a claim for which a scheduler has chosen a node. Its value is the node, and the version of the claim at
// the choice. If two schedulers place one pod, both write it, and the store refuses the second write.
const annPlacing = "volumekit.io/placing"

// ErrPodGone says that the pod whose claims are being bound is gone, or has ended.
var ErrPodGone = errors.New("the pod is gone or has ended")

// Bind writes the reservation into the store and waits until all claims of the pod are bound. The program that binds claims
// there, such as controller/persistentvolume, does the rest. The error matches [ErrPlaceAnew] if the claims can no longer
// be bound so: another scheduler was faster, a provisioner has rejected the node, or the node, a claim or a volume is gone.
// It matches [ErrPodGone] if the pod is gone or has ended, the cause of ctx if that ended, and [context.DeadlineExceeded] after
// [Options.BindTimeout]. Release the reservation after an error.
//
// On a [store.Transactor], Bind writes all or nothing. On any other store, the writes before an error stay.
//
// Only one Bind of a reservation runs at a time. A second one is refused, and so is that of a Reservation that
// [Scheduler.Reserve] did not return. The error matches [volume.ErrInvalid].
func (r *Reservation) Bind(ctx context.Context) error {
	if r == nil || r.scheduler == nil {
		return fmt.Errorf("bind the claims of a pod: nothing is reserved: %w", volume.ErrInvalid)
	}
	if len(r.choices) == 0 {
		return nil
	}
	s := r.scheduler
	ctx, cancel := context.WithTimeout(ctx, s.options.BindTimeout)
	defer cancel()
	if !s.follow(r) {
		return fmt.Errorf("bind the claims of pod %q on node %q: another Bind runs: %w", r.key.name, r.node, volume.ErrInvalid)
	}
	defer s.unfollow(r)
	if err := r.write(ctx); err != nil {
		return fmt.Errorf("bind the claims of pod %q on node %q: %w", r.key.name, r.node, err)
	}
	for {
		left, err := r.unbound()
		if err != nil {
			return fmt.Errorf("bind the claims of pod %q on node %q: %w", r.key.name, r.node, err)
		}
		if left == "" {
			return nil
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return fmt.Errorf("bind the claims of pod %q on node %q: claim %q is not bound: %w", r.key.name, r.node, left, context.Cause(ctx))
		}
	}
}

// follow makes changes of the reservation's claims wake the reservation. It returns false if they do already.
func (s *Scheduler) follow(r *Reservation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.binding {
		return false
	}
	r.binding = true
	for _, c := range r.choices {
		if s.waits[c.name] == nil {
			s.waits[c.name] = map[*Reservation]bool{}
		}
		s.waits[c.name][r] = true
	}
	return true
}

func (s *Scheduler) unfollow(r *Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.binding = false
	for _, c := range r.choices {
		delete(s.waits[c.name], r)
		if len(s.waits[c.name]) == 0 {
			delete(s.waits, c.name)
		}
	}
}

// placeAnew returns an error that matches ErrPlaceAnew and explains it.
func placeAnew(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), ErrPlaceAnew)
}

// writing holds the writes of a reservation for one claim.
type writing struct {
	fence    *v1.PersistentVolumeClaim // the claim with the mark of a chosen node; nil if it has that already
	volume   *v1.PersistentVolume      // the volume with a reference to the claim; nil if it has that already
	selected *v1.PersistentVolumeClaim // the claim with the node for which to make its volume; nil if it has that already, or no volume is made
}

// write writes the parts of the reservation that are not in the store yet.
func (r *Reservation) write(ctx context.Context) error {
	writings, err := r.writings()
	if err != nil {
		return err
	}
	if together, ok := r.scheduler.store.(store.Transactor); ok {
		return r.writeTogether(ctx, together, writings)
	}
	return r.writeSingly(ctx, writings)
}

// writings returns the writes, in the order of the claims' names.
func (r *Reservation) writings() ([]writing, error) {
	s := r.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := r.slot(); err != nil {
		return nil, err
	}
	var writings []writing
	for i := range r.choices {
		w, err := r.writing(&r.choices[i])
		if err != nil {
			return nil, err
		}
		writings = append(writings, w)
	}
	return writings, nil
}

func (r *Reservation) writing(c *choice) (writing, error) {
	x := r.scheduler.index
	claim := x.claims[c.name]
	switch {
	case claim == nil || claim.UID != c.uid || claim.DeletionTimestamp != nil:
		return writing{}, placeAnew("claim %q is gone", c.name)
	case claim.Spec.VolumeName != "":
		return writing{}, nil // isBound checks whether the node can have that volume
	}
	if other := c.placedSince(claim); other != "" && other != r.node {
		return writing{}, placeAnew("claim %q was placed on node %q", c.name, other)
	}
	c.claimBefore = claim.ResourceVersion
	var w writing
	w.fence = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&w.fence.ObjectMeta, annPlacing, r.node+"@"+claim.ResourceVersion)
	if c.volume == "" {
		if claim.Annotations[objects.AnnSelectedNode] != r.node {
			w.selected = w.fence.DeepCopy()
			metav1.SetMetaDataAnnotation(&w.selected.ObjectMeta, objects.AnnSelectedNode, r.node)
		}
		return w, nil
	}
	v := x.volumes[c.volume]
	if v == nil || v.object.UID != c.pvUID || v.object.DeletionTimestamp != nil {
		return writing{}, placeAnew("volume %q for claim %q is gone", c.volume, c.name)
	}
	var err error
	if w.volume, err = naming(v.object, claim); w.volume != nil {
		c.volumeBefore = v.object.ResourceVersion
	}
	return w, err
}

// placedSince returns the node that another choice gave the claim since this one, "" for none.
func (c *choice) placedSince(claim *v1.PersistentVolumeClaim) string {
	if placing := claim.Annotations[annPlacing]; placing != c.placing {
		node, _, _ := strings.Cut(placing, "@")
		return node
	}
	if selected := claim.Annotations[objects.AnnSelectedNode]; selected != c.selected {
		return selected
	}
	return ""
}

// naming returns the volume with a reference to the claim, or nil if it has that already.
func naming(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	switch {
	case objects.OwnedBy(pv, claim):
		return nil, nil
	case pv.Spec.ClaimRef != nil && !objects.ReservedFor(pv, claim):
		return nil, placeAnew("volume %q went to claim %q", pv.Name, objects.ClaimNameOf(pv))
	}
	changed := pv.DeepCopy()
	if pv.Spec.ClaimRef == nil {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnBoundByController, objects.Yes)
	}
	changed.Spec.ClaimRef = objects.ClaimRef(claim)
	return changed, nil
}

// writeTogether writes all in one transaction.
func (r *Reservation) writeTogether(ctx context.Context, s store.Transactor, writings []writing) error {
	var t store.Transaction
	for _, w := range writings {
		switch {
		case w.selected != nil:
			t.Writes = append(t.Writes, store.ToUpdate(w.selected))
		case w.fence != nil:
			t.Writes = append(t.Writes, store.ToUpdate(w.fence))
		}
		if w.volume != nil {
			t.Writes = append(t.Writes, store.ToUpdate(w.volume))
		}
	}
	if len(t.Writes) == 0 {
		return nil
	}
	written, err := s.Commit(ctx, t)
	if err != nil {
		return refused(err)
	}
	for _, obj := range written {
		r.scheduler.observe(obj)
	}
	return nil
}

// writeSingly writes the marks of all claims first, in one order for all schedulers. Only the scheduler that has written
// all marks continues.
func (r *Reservation) writeSingly(ctx context.Context, writings []writing) error {
	fenced := make([]*v1.PersistentVolumeClaim, len(writings))
	for i, w := range writings {
		if w.fence == nil {
			continue
		}
		updated, err := store.Update(ctx, r.scheduler.store, w.fence)
		if err != nil {
			return refused(err)
		}
		r.scheduler.observe(updated)
		fenced[i] = updated
	}
	for _, w := range writings {
		if w.volume == nil {
			continue
		}
		if err := r.checkMarks(fenced); err != nil {
			return err
		}
		updated, err := store.Update(ctx, r.scheduler.store, w.volume)
		if err != nil {
			return refused(err)
		}
		r.scheduler.observe(updated)
	}
	for i, w := range writings {
		if w.selected == nil {
			continue
		}
		if err := r.checkMarks(fenced); err != nil {
			return err
		}
		w.selected.ResourceVersion = fenced[i].ResourceVersion
		updated, err := store.Update(ctx, r.scheduler.store, w.selected)
		if err != nil {
			return refused(err)
		}
		r.scheduler.observe(updated)
	}
	return nil
}

// checkMarks returns an error if another scheduler has marked a claim since this one did.
func (r *Reservation) checkMarks(fenced []*v1.PersistentVolumeClaim) error {
	s := r.scheduler
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, ours := range fenced {
		if ours == nil {
			continue
		}
		now := s.index.claims[store.NameOf(ours)]
		switch {
		case now == nil || now.UID != ours.UID:
			return placeAnew("claim %q is gone", store.NameOf(ours))
		case now.Annotations[annPlacing] != ours.Annotations[annPlacing]:
			return placeAnew("claim %q was placed by another scheduler", store.NameOf(ours))
		}
	}
	return nil
}

// refused returns the error of a write. If the object has changed or is gone, the pod must be placed anew.
func refused(err error) error {
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrPlaceAnew, err)
	}
	return err
}

// observe puts a written object into the mirrors and the index at once.
func (s *Scheduler) observe(obj runtime.Object) {
	switch obj := obj.(type) {
	case *v1.PersistentVolume:
		s.volumes.Put(obj)
		s.volumeChanged(obj)
	case *v1.PersistentVolumeClaim:
		s.claims.Put(obj)
		s.claimChanged(obj)
	}
}

// unbound returns the name of a claim that is not bound yet, "" if all are. An error says that a claim cannot be bound as
// chosen.
func (r *Reservation) unbound() (string, error) {
	s := r.scheduler
	s.mu.RLock()
	defer s.mu.RUnlock()
	slot, err := r.slot()
	if err != nil {
		return "", err
	}
	left := ""
	for i := range r.choices {
		c := &r.choices[i]
		bound, err := r.isBound(c, slot)
		if err != nil {
			return "", err
		}
		if !bound {
			left = c.name.String()
		}
	}
	return left, nil
}

// slot returns the slot of the node. An error says that the pod can no longer be placed there.
func (r *Reservation) slot() (int32, error) {
	s := r.scheduler
	if r.stored {
		if p, there := s.pods.Get(r.key.name); !there || p.UID != r.key.uid || volume.IsPodTerminated(p) {
			return 0, ErrPodGone
		}
	}
	slot, there := s.index.nodes.find(r.node)
	if !there {
		return 0, placeAnew("node %q is gone", r.node)
	}
	if r.ended {
		return 0, placeAnew("the reservation has ended")
	}
	return slot, nil
}

// isBound reports whether a claim is bound as chosen for it. An error says that it cannot be.
func (r *Reservation) isBound(c *choice, slot int32) (bool, error) {
	x := r.scheduler.index
	claim := x.claims[c.name]
	switch {
	case claim == nil || claim.UID != c.uid || claim.DeletionTimestamp != nil:
		return false, placeAnew("claim %q is gone", c.name)
	case claim.Status.Phase == v1.ClaimLost:
		return false, placeAnew("claim %q has lost its volume", c.name)
	case claim.Spec.VolumeName != "":
		v := x.volumes[claim.Spec.VolumeName]
		if v != nil && (!v.affinity.has(slot) || !v.zones.has(slot)) {
			return false, placeAnew("claim %q got volume %q, which the node cannot have", c.name, v.object.Name)
		}
		return v != nil && isBound(claim), nil
	case claim.ResourceVersion == c.claimBefore:
		return false, nil // this scheduler does not see its own write yet
	case c.volume == "":
		if node := claim.Annotations[objects.AnnSelectedNode]; node != r.node {
			return false, placeAnew("a volume for claim %q is not made for the node any more", c.name)
		}
		return false, nil
	}
	v := x.volumes[c.volume]
	if v == nil || v.object.UID != c.pvUID {
		return false, placeAnew("volume %q for claim %q is gone", c.volume, c.name)
	}
	if v.object.ResourceVersion != c.volumeBefore && !objects.OwnedBy(v.object, claim) {
		return false, placeAnew("volume %q does not name claim %q any more", c.volume, c.name)
	}
	return false, nil
}
