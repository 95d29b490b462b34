package scheduling

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// twoClaims are claims that get existing volumes: a1 and b1 on node-1, or a2 and b2 on node-2. Nothing but the mark is written on them.
func twoClaims() []store.Object {
	return objectsOf(threeNodes(), list(
		newClass("late"), newClaim("a"), newClaim("b"),
		newVolume("a1", atNode("node-1")), newVolume("b1", atNode("node-1")), newVolume("a2", atNode("node-2")), newVolume("b2", atNode("node-2")),
	))
}

// beside starts a second scheduler on the store of w.
func (w *world) beside() *world {
	other := &world{t: w.t, store: w.store}
	other.start(Options{})
	return other
}

// restart has the scheduler of w use another store.
func (w *world) restart(s store.Store) {
	w.stop()
	w.store = s
	w.start(Options{})
}

// hooked is a store without transactions that calls after with the number of each update that was made.
type hooked struct {
	store.Store
	updates int
	after   func(update int) error
}

func (h *hooked) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	updated, err := h.Store.Update(ctx, obj)
	if err != nil {
		return nil, err
	}
	h.updates++
	if err := h.after(h.updates); err != nil {
		return nil, err
	}
	return updated, nil
}

// The mark is all that two schedulers have in common where claims get existing volumes.
func TestAMarkRefusesTheSecondScheduler(t *testing.T) {
	p := newPod("p", "a", "b")
	for name, wrap := range map[string]func(store.Store) store.Store{
		"with transactions":    func(s store.Store) store.Store { return s },
		"without transactions": func(s store.Store) store.Store { return plain{s} },
	} {
		requireRefused := func(w *world, second *binding) {
			w.t.Helper()
			require.ErrorIs(w.t, second.end(), ErrPlaceAnew)
			require.NotNil(w.t, w.volume("a1").Spec.ClaimRef)
			require.Nil(w.t, w.volume("a2").Spec.ClaimRef)
			require.Nil(w.t, w.volume("b2").Spec.ClaimRef)
		}
		t.Run(name+", the second has not seen it", func(t *testing.T) {
			inWorld(t, Options{}, twoClaims(), func(w *world) {
				w.restart(wrap(w.store))
				other := w.beside()
				second := other.reserve(p, "node-2")
				other.stop()
				first := w.reserve(p, "node-1")
				w.bind(w.t.Context(), first).requireRuns()
				requireRefused(w, w.bind(w.t.Context(), second))
				first.Release()
			})
		})
		t.Run(name+", the second has seen it", func(t *testing.T) {
			inWorld(t, Options{}, twoClaims(), func(w *world) {
				w.restart(wrap(w.store))
				other := w.beside()
				first, second := w.reserve(p, "node-1"), other.reserve(p, "node-2")
				w.bind(w.t.Context(), first).requireRuns()
				requireRefused(w, other.bind(w.t.Context(), second))
				first.Release()
				other.stop()
			})
		})
	}
}

// Without transactions a scheduler may stand still between its marks and its volumes, and another place the pod meanwhile.
func TestASchedulerThatStoodStillBindsNothing(t *testing.T) {
	p := newPod("p", "a", "b")
	inWorld(t, Options{}, twoClaims(), func(w *world) {
		beside := &world{t: w.t, store: plain{w.store}}
		goOn := make(chan struct{})
		w.restart(&hooked{Store: w.store, after: func(update int) error {
			if update == 2 { // both claims are marked
				<-goOn
			}
			return nil
		}})
		slow := w.bind(w.t.Context(), w.reserve(p, "node-1"))
		slow.requireRuns()
		beside.start(Options{})
		quick := beside.reserve(p, "node-2")
		beside.bind(w.t.Context(), quick).requireRuns()
		close(goOn)
		require.ErrorIs(w.t, slow.end(), ErrPlaceAnew)
		for name, named := range map[string]bool{"a1": false, "b1": false, "a2": true, "b2": true} {
			require.Equal(w.t, named, w.volume(name).Spec.ClaimRef != nil, name)
		}
		quick.Release()
		beside.stop()
	})
}

// A scheduler ends after any of its writes, or loses the answer to it: the next one places the pod, with all volumes on one node.
func TestTheNextSchedulerPlacesWhatOneLeftBehind(t *testing.T) {
	p := newPod("p", "a", "b", "c")
	base := objectsOf(twoClaims(), list(newClass("made", makes), newClaim("c", ofClass("made"))))
	for writes := 1; writes <= 6; writes++ { // three marks, two volumes, a selected node
		inWorld(t, Options{}, base, func(w *world) {
			sound := plain{w.store}
			w.restart(&hooked{Store: w.store, after: func(update int) error {
				if update == writes {
					return errFull
				}
				return nil
			}})
			first := w.bind(w.t.Context(), w.reserve(p, "node-1"))
			require.ErrorIs(w.t, first.end(), errFull, "write %d", writes)
			w.restart(sound)
			result, err := w.s.Find(p)
			require.NoError(w.t, err)
			nodes := slices.Collect(result.Nodes())
			require.NotEmpty(w.t, nodes, "write %d", writes)
			node := nodes[len(nodes)-1] // another than the first's, if there is one
			r := w.reserve(p, node)
			b := w.bind(w.t.Context(), r)
			b.requireRuns()
			for claim, pv := range r.Volumes() {
				require.Equal(w.t, claim.Name, w.volume(pv).Spec.ClaimRef.Name)
				w.finish(claim.Name, pv)
			}
			require.Len(w.t, r.Volumes(), 2)
			w.create(newVolume("made-for-c", atNode(node)))
			w.finish("c", "made-for-c")
			require.NoError(w.t, b.end(), "write %d", writes)
		})
	}
}

// What Bind finds changed before it writes: nothing is written.
func TestBindWritesNothingForWhatIsGone(t *testing.T) {
	p := newPod("p", "a", "b")
	for name, tt := range map[string]struct {
		change func(w *world)
		err    error
	}{
		"the pod":  {func(w *world) { w.delete(p) }, ErrPodGone},
		"the node": {func(w *world) { w.delete(newNode("node-1")) }, ErrPlaceAnew},
		"a claim of the same name": {func(w *world) {
			w.delete(newClaim("b"))
			w.create(newClaim("b", func(c *v1.PersistentVolumeClaim) { c.UID = "another" }))
			synctest.Wait()
		}, ErrPlaceAnew},
		"a volume of the same name": {func(w *world) {
			w.delete(newVolume("b1"))
			w.create(newVolume("b1", atNode("node-1"), func(pv *v1.PersistentVolume) { pv.UID = "another" }))
			synctest.Wait()
		}, ErrPlaceAnew},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{}, objectsOf(twoClaims(), list(p)), func(w *world) {
				w.restart(plain{w.store})
				r := w.reserve(p, "node-1")
				tt.change(w)
				require.ErrorIs(w.t, w.bind(w.t.Context(), r).end(), tt.err)
				require.NotContains(w.t, w.claim("a").Annotations, annPlacing)
				require.Nil(w.t, w.volume("a1").Spec.ClaimRef)
				r.Release()
			})
		})
	}
}
