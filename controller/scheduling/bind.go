package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// AnnPlacing is on a claim for which a scheduler has chosen a node. Its value is the node and the version of the claim of which it was
// chosen: two schedulers that place one pod write it both, and the second is refused.
const AnnPlacing = "volumekit.io/placing"

// ErrPodGone says that the pod is gone for which claims were to be bound.
var ErrPodGone = errors.New("the pod is gone")

// Bind writes what is reserved into the store, and returns when all claims of the pod are bound, by whoever binds claims there, such as
// controller/persistentvolume. The error matches [ErrPlaceAnew] when that cannot be any more: another scheduler was quicker, a
// provisioner has given the node up, or the node, a claim or a volume is gone. It matches [ErrPodGone], or what ended ctx, or
// [context.DeadlineExceeded] after [Options.BindTimeout]. Release the reservation after an error.
//
// On a [store.Transactor] all is written or nothing. Without, what was written before an error stays.
//
// One Bind of a reservation runs at a time: a second one, and that of a Reservation which [Scheduler.Reserve] did not return, is
// refused with an error that matches [volume.ErrInvalid].
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
		left, err := r.missing()
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

// follow has a reservation notified when its claims change. It reports whether that was not so already.
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

// placeAnew returns an error that says why the pod must be placed anew.
func placeAnew(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), ErrPlaceAnew)
}

// writing is what a reservation writes of one claim.
type writing struct {
	fence    *v1.PersistentVolumeClaim // says that a node was chosen; nil when the claim says so already
	volume   *v1.PersistentVolume      // names the claim; nil when it does already
	selected *v1.PersistentVolumeClaim // says for which node to make its volume; nil when it does already, or none is made
}

// write writes what is not in the store yet.
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

// writings returns what is to be written, in the order of the claims' names.
func (r *Reservation) writings() ([]writing, error) {
	s := r.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := r.slot(); err != nil {
		return nil, err
	}
	slices.SortFunc(r.choices, func(a, b choice) int { return strings.Compare(a.name.Name, b.name.Name) })
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
		return writing{}, nil // missing finds out whether that is what was chosen
	}
	if other := c.placedSince(claim); other != "" && other != r.node {
		return writing{}, placeAnew("claim %q was placed on node %q", c.name, other)
	}
	c.claimBefore = claim.ResourceVersion
	var w writing
	w.fence = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&w.fence.ObjectMeta, AnnPlacing, r.node+"@"+claim.ResourceVersion)
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

// placedSince returns the node that was chosen for a claim since the choice, "" for none.
func (c *choice) placedSince(claim *v1.PersistentVolumeClaim) string {
	if placing := claim.Annotations[AnnPlacing]; placing != c.placing {
		node, _, _ := strings.Cut(placing, "@")
		return node
	}
	if selected := claim.Annotations[objects.AnnSelectedNode]; selected != c.selected {
		return selected
	}
	return ""
}

// naming returns a volume that names a claim; nil when it does already.
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

// writeTogether writes all at once.
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
		r.scheduler.see(obj)
	}
	return nil
}

// writeSingly writes the fences first, in one order for all schedulers: whoever writes them all may go on.
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
		r.scheduler.see(updated)
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
		r.scheduler.see(updated)
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
		r.scheduler.see(updated)
	}
	return nil
}

// checkMarks returns an error when another scheduler has marked a claim since this one did.
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
		case now.Annotations[AnnPlacing] != ours.Annotations[AnnPlacing]:
			return placeAnew("claim %q was placed by another scheduler", store.NameOf(ours))
		}
	}
	return nil
}

// refused returns the error of a write: of an object that is not what it was, the pod must be placed anew.
func refused(err error) error {
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrPlaceAnew, err)
	}
	return err
}

// see makes known what was written.
func (s *Scheduler) see(obj runtime.Object) {
	switch obj := obj.(type) {
	case *v1.PersistentVolume:
		s.volumes.Put(obj)
		s.volumeChanged(obj)
	case *v1.PersistentVolumeClaim:
		s.claims.Put(obj)
		s.claimChanged(obj)
	}
}

// missing returns the name of a claim that is not bound yet, "" when all are. An error says that they will not be.
func (r *Reservation) missing() (string, error) {
	s := r.scheduler
	s.mu.RLock()
	defer s.mu.RUnlock()
	slot, err := r.slot()
	if err != nil {
		return "", err
	}
	left := ""
	for _, c := range r.choices {
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

// slot returns the slot of the node. An error says that the pod cannot be placed there any more.
func (r *Reservation) slot() (int32, error) {
	s := r.scheduler
	if r.stored {
		if p, there := s.pods.Get(r.key.name); !there || p.UID != r.key.uid {
			return 0, ErrPodGone
		}
	}
	slot, there := s.index.nodes.there(r.node)
	if !there {
		return 0, placeAnew("node %q is gone", r.node)
	}
	if r.ended {
		return 0, placeAnew("the reservation has ended")
	}
	return slot, nil
}

// isBound reports whether a claim is bound to what was chosen for it. An error says that it will not be.
func (r *Reservation) isBound(c choice, slot int32) (bool, error) {
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
		return false, nil // what was written is not seen yet
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
